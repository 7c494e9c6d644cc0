//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The kernel's side of package probe: it finds the peer that a thread serves, and the group that its block I/O is charged to. The kernel gives
// bpf_probe_read_kernel to programs under the GPL only, so this file is under both licences: the object says "Dual BSD/GPL".
//
// It is compiled in advance: see the command in probe.go. No header of a kernel is used. Each struct below has only the
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

enum { BPF_MAP_TYPE_HASH = 1, BPF_MAP_TYPE_ARRAY = 2, BPF_MAP_TYPE_TASK_STORAGE = 29 };
enum { BPF_ANY = 0, BPF_NOEXIST = 1 };
enum { BPF_F_NO_PREALLOC = 1, BPF_LOCAL_STORAGE_GET_F_CREATE = 1 };

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#define KERNEL __attribute__((preserve_access_index))

struct gendisk {
	int major;
	int first_minor;
} KERNEL;

struct block_device {
	__u32 bd_dev;
	struct gendisk *bd_disk;
} KERNEL;

struct bvec_iter {
	__u32 bi_size;
} KERNEL;

struct kernfs_node {
	__u64 id;
} KERNEL;

struct cgroup {
	struct kernfs_node *kn;
} KERNEL;

struct cgroup_subsys_state {
	struct cgroup *cgroup;
} KERNEL;

struct blkcg {
	struct cgroup_subsys_state css;
} KERNEL;

struct blkcg_gq {
	struct blkcg *blkcg;
} KERNEL;

struct bio {
	struct block_device *bi_bdev;
	__u32 bi_opf;
	struct bvec_iter bi_iter;
	struct blkcg_gq *bi_blkg;
} KERNEL;

enum req_flag_bits { __REQ_SYNC = 11, __REQ_META = 12 };

enum cgroup_subsys_id { io_cgrp_id = 3 };

struct css_set {
	struct cgroup_subsys_state *subsys[1]; // the kernel has more
} KERNEL;

struct in6_addr {
	union {
		__u32 u6_addr32[4];
	} in6_u;
} KERNEL;

struct sock_common {
	__be32 skc_daddr;
	__u16 skc_family;
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
	unsigned in_iowait : 1;
	struct css_set *cgroups;
	char comm[16];
	struct task_struct *group_leader;
	struct task_struct *real_parent;
} KERNEL;

enum { AF_INET = 2, AF_INET6 = 10, IPPROTO_TCP = 6 };
enum { PF_KTHREAD = 0x00200000 };
enum { OP_MASK = 0xff, OP_READ = 0, OP_WRITE = 1, OP_ZONE_APPEND = 7 };

// address is the address of a peer. An IPv4 address is mapped to IPv6 (::ffff:192.0.2.1).
struct address {
	__u32 word[4];
};

// served is the peer that a thread or a process is known to serve.
struct served {
	struct address peer;
	__u8 known;     // 1: peer is set
	__u8 inherited; // 1: the peer is that of the process that forked this one (of a process only)
	__u8 several;   // 1: its threads received from several peers (of a process only)
};

// The ways in which the peer of a request is found. probe.go has the same numbers.
enum { BY_NONE, BY_THREAD, BY_PROCESS, BY_PARENT, BY_SEVERAL };

// The classes of I/O. probe.go has the same numbers.
enum { READ, WRITE, JOURNAL, WRITEBACK, KERNEL_READ, KERNEL_WRITE };

// key identifies one sum of bytes.
struct key {
	struct address peer;
	__u64 group; // the id of the group that is charged
	__u32 class;
	__u32 by;
};

struct sum {
	__u64 bytes;
	__u64 requests;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct served);
} threads SEC(".maps");

// processes holds the same for whole processes. It is stored with the first thread of a process.
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct served);
} processes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, struct key);
	__type(value, struct sum);
} sums SEC(".maps");

// waits counts how often threads waited for I/O, by peer and group (class is 0).
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, struct key);
	__type(value, struct sum);
} waits SEC(".maps");

// numbers is a map, because the library would keep global variables in the kernel until its next garbage collection.
enum { DISK, LOST, NUMBERS };

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, NUMBERS);
	__type(key, __u32);
	__type(value, __u64);
} numbers SEC(".maps"); // DISK: the dev_t of the disk or partition; LOST: bytes for which sums had no room

static bool same(const struct address *a, const struct address *b)
{
	return a->word[0] == b->word[0] && a->word[1] == b->word[1] && a->word[2] == b->word[2] && a->word[3] == b->word[3];
}

// serves_with reports whether a socket is a TCP connection that a server accepted, and reads its peer. If a connection was made from this
// host, the kernel chose its port, and fastreuse of its port bucket is -1 (__inet_hash_connect). In all other cases it is 0 or more.
static bool serves_with(struct sock *sk, struct address *peer)
{
	struct inet_bind_bucket *bucket;
	__u16 family;

	if (!sk || BPF_CORE_READ(sk, sk_protocol) != IPPROTO_TCP)
		return false;
	family = BPF_CORE_READ(sk, __sk_common.skc_family);
	if (family == AF_INET) {
		peer->word[0] = 0;
		peer->word[1] = 0;
		peer->word[2] = __builtin_bswap32(0xffff);
		peer->word[3] = BPF_CORE_READ(sk, __sk_common.skc_daddr);
	} else if (family == AF_INET6) {
		bpf_core_read(peer, sizeof(*peer), &sk->__sk_common.skc_v6_daddr);
	} else {
		return false;
	}
	bucket = BPF_CORE_READ((struct inet_connection_sock *)sk, icsk_bind_hash);
	return !bucket || BPF_CORE_READ(bucket, fastreuse) >= 0;
}

// received notes the peer that this thread serves from now on.
static int received(struct sock *sk, int length)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct address peer = {};
	struct served *s;

	if (length <= 0 || !serves_with(sk, &peer))
		return 0;
	s = bpf_task_storage_get(&threads, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!s || (s->known && same(&s->peer, &peer)))
		return 0;
	s->peer = peer;
	s->known = 1;
	s = bpf_task_storage_get(&processes, task->group_leader, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!s)
		return 0;
	if (s->known && !s->inherited && !same(&s->peer, &peer))
		s->several = 1;
	s->peer = peer;
	s->inherited = 0;
	s->known = 1;
	return 0;
}

SEC("tp_btf/sock_recv_length")
int receive(__u64 *ctx)
{
	return received((struct sock *)ctx[0], (int)ctx[1]);
}

// receive_tcp is for kernels before 6.3, which have no sock_recv_length. The number of arguments of tcp_recvmsg changed, the first one did not.
SEC("fexit/tcp_recvmsg")
int receive_tcp(__u64 *ctx)
{
	__u64 length = 0;

	if (bpf_get_func_ret(ctx, &length))
		return 0;
	return received((struct sock *)ctx[0], (int)length);
}

// fork_of notes that a new process serves the peer of its parent, until it receives something itself.
SEC("tp_btf/sched_process_fork")
int fork_of(__u64 *ctx)
{
	struct task_struct *parent = (struct task_struct *)ctx[0], *child = (struct task_struct *)ctx[1];
	struct served *from, *to;

	if (parent->tgid == child->tgid) // a thread: its process is asked
		return 0;
	from = bpf_task_storage_get(&processes, parent->group_leader, 0, 0);
	if (!from || !from->known || from->several)
		return 0;
	to = bpf_task_storage_get(&processes, child, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!to)
		return 0;
	to->peer = from->peer;
	to->known = 1;
	to->inherited = 1;
	return 0;
}

// of_process fills in the peer that a process serves, if only one peer was seen.
static bool of_process(struct task_struct *leader, struct key *k, __u32 by)
{
	struct served *s = bpf_task_storage_get(&processes, leader, 0, 0);

	if (!s || !s->known)
		return false;
	if (s->several) {
		k->by = BY_SEVERAL;
		return true;
	}
	k->peer = s->peer;
	k->by = by;
	return true;
}

// serves fills in the peer that this thread serves. A process that was started by the one that holds the socket may do I/O before its
// parent receives anything (socat EXEC:), so the parents are looked at last.
static void serves(struct task_struct *task, bool kernel, struct key *k)
{
	struct served *s = bpf_task_storage_get(&threads, task, 0, 0);
	struct task_struct *up;

	if (s && s->known) {
		k->peer = s->peer;
		k->by = BY_THREAD;
		return;
	}
	if (kernel || of_process(task->group_leader, k, BY_PROCESS))
		return;
	up = task->group_leader->real_parent;
	if (of_process(up->group_leader, k, BY_PARENT))
		return;
	of_process(up->group_leader->real_parent->group_leader, k, BY_PARENT);
}

static bool on_disk(struct bio *bio)
{
	__u32 which = DISK;
	__u64 *disk = bpf_map_lookup_elem(&numbers, &which);
	struct block_device *on = BPF_CORE_READ(bio, bi_bdev);
	struct gendisk *whole;

	if (!disk)
		return false;
	if (BPF_CORE_READ(on, bd_dev) == *disk)
		return true;
	whole = BPF_CORE_READ(on, bd_disk); // of a partition
	return ((__u32)BPF_CORE_READ(whole, major) << 20 | BPF_CORE_READ(whole, first_minor)) == *disk;
}

static bool is_journal(struct task_struct *task)
{
	char name[16];

	BPF_CORE_READ_STR_INTO(&name, task, comm);
	return (name[0] == 'j' && name[1] == 'b' && name[2] == 'd' && name[3] == '2') ||
	       (name[0] == 'x' && name[1] == 'f' && name[2] == 's') ||
	       (name[0] == 'b' && name[1] == 't' && name[2] == 'r' && name[3] == 'f');
}

static struct sum *sum_of(void *map, struct key *k)
{
	struct sum *s = bpf_map_lookup_elem(map, k), none = {};

	if (s)
		return s;
	bpf_map_update_elem(map, k, &none, BPF_NOEXIST);
	return bpf_map_lookup_elem(map, k);
}

// count adds one request to the sums.
static int count(struct bio *bio)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u32 size, flags, op, meta, sync, which;
	__u64 *lost;
	struct key k = {};
	struct sum *s;
	bool kernel;

	size = BPF_CORE_READ(bio, bi_iter.bi_size);
	if (!size || !on_disk(bio))
		return 0;
	flags = BPF_CORE_READ(bio, bi_opf);
	op = flags & OP_MASK;
	if (op != OP_READ && op != OP_WRITE && op != OP_ZONE_APPEND)
		return 0;
	meta = flags & 1U << bpf_core_enum_value(enum req_flag_bits, __REQ_META);
	sync = flags & 1U << bpf_core_enum_value(enum req_flag_bits, __REQ_SYNC);
	k.group = BPF_CORE_READ(bio, bi_blkg, blkcg, css.cgroup, kn, id);
	kernel = task->flags & PF_KTHREAD;
	serves(task, kernel, &k);
	kernel = kernel && !k.by;
	if (op == OP_READ)
		k.class = kernel ? KERNEL_READ : READ;
	else if (meta || (kernel && is_journal(task)))
		k.class = JOURNAL;
	else if (kernel)
		k.class = sync ? KERNEL_WRITE : WRITEBACK;
	else
		k.class = WRITE;
	s = sum_of(&sums, &k);
	if (!s) {
		which = LOST;
		lost = bpf_map_lookup_elem(&numbers, &which);
		if (lost)
			__sync_fetch_and_add(lost, size);
		return 0;
	}
	__sync_fetch_and_add(&s->bytes, size);
	__sync_fetch_and_add(&s->requests, 1);
	return 0;
}

// submit runs when a file system gives I/O to a disk: in the thread that asks for the I/O, and before a limit delays it.
SEC("fentry/submit_bio")
int submit(__u64 *ctx)
{
	return count((struct bio *)ctx[0]);
}

// queue is for kernels that refuse submit. I/O that a limit delayed comes here from a kernel thread, as KERNEL_READ and KERNEL_WRITE.
SEC("tp_btf/block_bio_queue")
int queue(__u64 *ctx)
{
	return count((struct bio *)ctx[0]);
}

// wait goes with queue. A thread whose I/O is delayed sleeps until the I/O is done, in the group that is charged. If only one peer waits in a
// group, that peer asked for the I/O.
SEC("tp_btf/sched_switch")
int wait(__u64 *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf(); // the one that goes to sleep
	struct cgroup_subsys_state *css = 0;
	struct css_set *set;
	struct key k = {};
	struct sum *s;

	if (task->flags & PF_KTHREAD || !BPF_CORE_READ_BITFIELD_PROBED(task, in_iowait))
		return 0;
	serves(task, false, &k);
	set = BPF_CORE_READ(task, cgroups);
	bpf_probe_read_kernel(&css, sizeof(css),
			      (void *)__builtin_preserve_access_index(&set->subsys) +
				      bpf_core_enum_value(enum cgroup_subsys_id, io_cgrp_id) * sizeof(css));
	k.group = BPF_CORE_READ(css, cgroup, kn, id);
	s = sum_of(&waits, &k);
	if (s)
		__sync_fetch_and_add(&s->requests, 1);
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
