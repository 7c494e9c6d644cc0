//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The kernel's side of package gate: it stops a process of a file server at its first receive from a node. The kernel gives
// bpf_send_signal to programs under the GPL only, so this file is under both licences: the object says "Dual BSD/GPL".
//
// It is compiled in advance: see the command in gate.go. No header of a kernel is used. Each struct below has only the
// members that are read; the loader finds their places by the running kernel's BTF.

typedef unsigned char __u8;
typedef signed char __s8;
typedef unsigned short __u16;
typedef short __s16;
typedef unsigned int __u32;
typedef int __s32;
typedef unsigned long long __u64;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u64 __be64;
typedef __u32 __wsum;
typedef _Bool bool;
enum { false, true };

enum { BPF_MAP_TYPE_HASH = 1, BPF_MAP_TYPE_ARRAY = 2, BPF_MAP_TYPE_RINGBUF = 27, BPF_MAP_TYPE_TASK_STORAGE = 29 };
enum { BPF_ANY = 0 };
enum { BPF_F_NO_PREALLOC = 1, BPF_LOCAL_STORAGE_GET_F_CREATE = 1 };

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#define KERNEL __attribute__((preserve_access_index))

struct ns_common {
	__u32 inum;
} KERNEL;

struct net {
	struct ns_common ns;
} KERNEL;

typedef struct {
	struct net *net;
} KERNEL possible_net_t;

struct in6_addr {
	union {
		__u32 u6_addr32[4];
	} in6_u;
} KERNEL;

struct sock_common {
	__be32 skc_daddr;
	__u16 skc_num;
	__u16 skc_family;
	possible_net_t skc_net;
	struct in6_addr skc_v6_daddr;
} KERNEL;

struct sock {
	struct sock_common __sk_common;
	__u16 sk_protocol;
} KERNEL;

struct inet_bind_bucket {
	__s8 fastreuse;
} KERNEL;

struct inet_connection_sock {
	struct inet_bind_bucket *icsk_bind_hash;
} KERNEL;

struct task_struct {
	__u32 flags;
	int tgid;
	__u64 start_boottime;
	struct task_struct *group_leader;
} KERNEL;

enum { PF_KTHREAD = 0x00200000 };
enum { AF_INET = 2, AF_INET6 = 10, IPPROTO_TCP = 6, SIGSTOP = 19 };

// address is the address of a peer. An IPv4 address is mapped to IPv6 (::ffff:192.0.2.1).
struct address {
	__u32 word[4];
};

// addresses maps each address of a node to the number of its node. No node has the number 0.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct address);
	__type(value, __u32);
} addresses SEC(".maps");

// nodes is the set of the numbers that are in use. A group that is made anew gets another number.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u32);
} nodes SEC(".maps");

// of is what the program knows of a process. It is stored with the first thread of the process.
struct of {
	__u32 node;    // the number of the node for which it was stopped; 0: it was not stopped
	__u32 several; // 1: it also received from another node, or it cannot be stopped
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct of);
} processes SEC(".maps");

// stop records a process that was stopped and is to be continued. Type stop in stops.go has the same layout.
struct stop {
	__u64 start; // when the process was started, in ns after boot
	__u64 at;    // when it was stopped, in ns of the monotonic clock
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct stop);
} stopped SEC(".maps");

// The kinds of events. stops.go has the same numbers.
enum { STOPPED, SEVERAL, OF_KERNEL };

struct event {
	struct stop stop;
	__u32 kind;
	__u32 pid;
	__u32 node;
	__u32 other; // for SEVERAL: the other node from which the process received
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 18);
} events SEC(".maps");

enum { PORT, NETWORK, AGENT, FULL, NUMBERS };

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, NUMBERS);
	__type(key, __u32);
	__type(value, __u64);
} numbers SEC(".maps"); // PORT: the port of the server; NETWORK: the inode number of its network namespace; AGENT: the process
// that continues stopped processes; FULL: how often there was no room for an event

static bool is(__u32 which, __u64 value)
{
	__u64 *n = bpf_map_lookup_elem(&numbers, &which);

	return n && *n == value;
}

// node_of returns the number of the node at the other end of a connection that the server accepted; 0 if there is none. If
// a connection was made from this host, the kernel chose its port, and fastreuse of its port bucket is -1 (__inet_hash_connect). In all
// other cases fastreuse is 0 or more.
static __u32 node_of(struct sock *sk)
{
	struct inet_bind_bucket *bucket;
	struct address peer = {};
	__u32 *node;
	__u16 family;

	if (!sk || !is(PORT, BPF_CORE_READ(sk, __sk_common.skc_num)) || BPF_CORE_READ(sk, sk_protocol) != IPPROTO_TCP ||
	    !is(NETWORK, BPF_CORE_READ(sk, __sk_common.skc_net.net, ns.inum)))
		return 0;
	family = BPF_CORE_READ(sk, __sk_common.skc_family);
	if (family == AF_INET) {
		peer.word[2] = __builtin_bswap32(0xffff);
		peer.word[3] = BPF_CORE_READ(sk, __sk_common.skc_daddr);
	} else if (family == AF_INET6) {
		bpf_core_read(&peer, sizeof(peer), &sk->__sk_common.skc_v6_daddr);
	} else {
		return 0;
	}
	bucket = BPF_CORE_READ((struct inet_connection_sock *)sk, icsk_bind_hash);
	if (bucket && BPF_CORE_READ(bucket, fastreuse) < 0)
		return 0;
	node = bpf_map_lookup_elem(&addresses, &peer);
	// A link-local address stands for all with the same second half, if that was made of a MAC: ff:fe is in its middle.
	if (!node && family == AF_INET6 && (peer.word[2] & __builtin_bswap32(0xff)) == __builtin_bswap32(0xff) &&
	    (peer.word[3] & __builtin_bswap32(0xff000000)) == __builtin_bswap32(0xfe000000)) {
		peer.word[0] = __builtin_bswap32(0xfe800000);
		peer.word[1] = 0;
		node = bpf_map_lookup_elem(&addresses, &peer);
	}
	return node ? *node : 0;
}

// say reserves room for an event and fills the event in. The caller submits it. It returns 0 if there is no room.
static struct event *say(struct task_struct *leader, __u32 kind, __u32 node, __u32 other)
{
	struct event *e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);

	if (!e) {
		__u32 full = FULL;
		__u64 *n = bpf_map_lookup_elem(&numbers, &full);

		if (n)
			__sync_fetch_and_add(n, 1);
		return 0;
	}
	e->stop.start = leader->start_boottime;
	e->stop.at = bpf_ktime_get_ns();
	e->kind = kind;
	e->pid = leader->tgid;
	e->node = node;
	e->other = other;
	return e;
}

// stop stops this process: no thread of it goes back to its own code before it is continued. The process is noted in
// stopped first, so that it is continued even if the agent never gets the event.
static bool stop(struct task_struct *leader, __u32 node)
{
	struct event *e = say(leader, STOPPED, node, 0);
	struct stop note;
	__u32 pid;

	if (!e)
		return false;
	note = e->stop;
	pid = e->pid;
	if (bpf_map_update_elem(&stopped, &pid, &note, BPF_ANY)) {
		bpf_ringbuf_discard(e, 0);
		return false;
	}
	if (bpf_send_signal(SIGSTOP)) {
		bpf_map_delete_elem(&stopped, &pid);
		bpf_ringbuf_discard(e, 0);
		return false;
	}
	bpf_ringbuf_submit(e, 0);
	return true;
}

// never tells the agent, once for each process, why the process is not stopped.
static void never(struct task_struct *leader, struct of *p, __u32 kind, __u32 node, __u32 other)
{
	struct event *e;

	if (__sync_val_compare_and_swap(&p->several, 0, 1))
		return;
	e = say(leader, kind, node, other);
	if (e)
		bpf_ringbuf_submit(e, 0);
	else
		p->several = 0; // tried again
}

static int received(struct sock *sk, int length)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u32 node, was;
	struct of *p;

	if (length <= 0 || is(AGENT, task->tgid)) // who would continue the agent?
		return 0;
	node = node_of(sk);
	if (!node)
		return 0;
	p = bpf_task_storage_get(&processes, task->group_leader, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!p || p->several)
		return 0;
	was = p->node;
	if (was == node)
		return 0;
	if (task->flags & PF_KTHREAD) {
		never(task->group_leader, p, OF_KERNEL, node, 0);
		return 0;
	}
	if (was && bpf_map_lookup_elem(&nodes, &was)) {
		never(task->group_leader, p, SEVERAL, was, node);
		return 0;
	}
	if (__sync_val_compare_and_swap(&p->node, was, node) == was && !stop(task->group_leader, node))
		p->node = 0; // tried again at the next receive
	return 0;
}

SEC("tp_btf/sock_recv_length")
int gate_receive(__u64 *ctx)
{
	return received((struct sock *)ctx[0], (int)ctx[1]);
}

// gate_tcp is for kernels before 6.3, which have no sock_recv_length. The number of arguments of tcp_recvmsg changed, the first one did not.
SEC("fexit/tcp_recvmsg")
int gate_tcp(__u64 *ctx)
{
	__u64 length = 0;

	if (bpf_get_func_ret(ctx, &length))
		return 0;
	return received((struct sock *)ctx[0], (int)length);
}

char _license[] SEC("license") = "Dual BSD/GPL";
