//go:build ignore

// Threads of a file server put themselves into the block I/O group of the node that they serve (cgroup v1).
//
//	LD_PRELOAD=/usr/lib/berth/berth-sync.so BERTH_SYNC_DIR=/run/berth/sync/FS xrootd ...
//
// After each receive from a client, and before each transmission to one, the calling thread looks up whose address the client
// has, and moves itself by writing "0" to groups/NODE/tasks, if the node is another one than before. That takes about 30 us. Then the
// call returns to the server, which reads the disk in that group. Clients that are no
// nodes are served in groups/_server. The library keeps no descriptor open: a server that closes all descriptors that it does not know would
// close it, and open a file of its own with the same number.
//
// The server must not notice the library. A failure leaves the thread in its group, and is counted (struct counts). The library keeps errno,
// prints nothing, allocates no memory and passes no cancellation point. Its own system calls go through syscall(2), which is neither
// intercepted nor a cancellation point.

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define DESCRIPTORS (1 << 20) // the kernel's default bound (fs.nr_open); pages of the array that are not touched cost nothing
#define NODES 4096            // the most names that are known at once; if there are more, all are forgotten
#define PAGE 65536            // the largest page size, in bytes, of the machines that this is built for
#define NAME 64               // the most bytes of a node's name, with the zero at its end

// One word holds what is known of a descriptor, so that threads agree on it without a lock:
//   bits 40..63  a counter that grows each time the number means another file: what a thread found out about the old file is not stored
//   bits 16..39  the generation of the table in which the other bits were found
//   bit  15      1: the descriptor was accepted, so its other end is a client
//   bits  0..14  UNKNOWN, NO_CLIENT, or BASE + number of the node
enum { UNKNOWN, NO_CLIENT, BASE };
#define ACCEPTED 0x8000u
#define USE(w) ((w) >> 40)
#define WORD(use, gen, what) ((uint64_t)(use) << 40 | ((uint64_t)(gen) & 0xffffff) << 16 | (what))
static _Atomic uint64_t known[DESCRIPTORS];

// counts is shown to admins: preload.go finds it in /proc/PID/maps as memfd:berth-sync.
struct counts {
	_Atomic uint64_t moved, failed, last_errno, version;
};

// VERSION grows with each change that servers should be restarted for: preload.go has it, too.
#define VERSION 1
static struct counts fallback;
static struct counts *counts = &fallback;

static const char *dir; // BERTH_SYNC_DIR; NULL: the library does nothing
static _Alignas(PAGE) _Atomic uint64_t page[PAGE / 8]; // the file "generation" is mapped here
static _Atomic uint64_t epoch;  // grows when a new table is mapped, or names are forgotten
static _Atomic int64_t checked; // the second in which the mapping was last compared with the file

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char names[NODES][NAME]; // 0 is _server; guarded by lock
static int filled;
static dev_t table_dev;
static ino_t table_ino;

// here is the node in whose group this thread is. inside says that the thread is in this library, which a signal handler must not enter again.
#define TLS static __thread __attribute__((tls_model("initial-exec")))
TLS int here = -1;
TLS uint64_t here_gen;
TLS int inside;

static uint64_t generation(void)
{
	return atomic_load_explicit(&page[0], memory_order_acquire) + atomic_load(&epoch);
}

static long raw_open(const char *path, int flags) { return syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, 0); }

static void failed(int e)
{
	counts->failed++;
	counts->last_errno = (uint64_t)e;
}

static void forget(void) // the caller holds the lock
{
	filled = 1;
	strcpy(names[0], "_server");
	epoch++;
}

// follow maps the file "generation", for the first time or because another file is in its place: berthd was started after the server, or
// serves the file system anew. It is called once a second. The caller holds the lock.
static void follow(void)
{
	char path[4096];
	struct stat is;
	if (snprintf(path, sizeof path, "%s/generation", dir) >= (int)sizeof path)
		return;
	long fd = raw_open(path, O_RDONLY);
	if (fd < 0)
		return; // there is no table now: what is known stays
	// A file that has no content yet cannot be mapped: reading it would end the process (SIGBUS).
	if (fstat((int)fd, &is) == 0 && is.st_size >= 8 && (is.st_ino != table_ino || is.st_dev != table_dev)) {
		epoch = generation(); // the new table counts from 1 again, and no sum may be one that was used before
		if (mmap(page, PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, (int)fd, 0) == (void *)page) {
			table_ino = is.st_ino;
			table_dev = is.st_dev;
			forget();
		}
	}
	syscall(SYS_close, fd);
}

static int number(const char *name) // the caller holds the lock; -1: this is no name of a node
{
	if (!*name || *name == '.' || strchr(name, '/'))
		return -1;
	for (int i = 0; i < filled; i++)
		if (!strcmp(names[i], name))
			return i;
	if (filled == NODES)
		forget();
	strcpy(names[filled], name);
	return filled++;
}

// peer finds out what a descriptor is: UNKNOWN, NO_CLIENT, or for a connection of a client BASE + the number of its node. The caller holds
// the lock.
static unsigned peer(int fd, unsigned accepted)
{
	union {
		struct sockaddr any;
		struct sockaddr_in v4;
		struct sockaddr_in6 v6;
	} a;
	socklen_t len = sizeof a, size = sizeof(int);
	int type = 0;
	char text[INET6_ADDRSTRLEN], path[4096], name[NAME];
	if (getpeername(fd, &a.any, &len) != 0)
		return errno == ENOTCONN ? UNKNOWN : NO_CLIENT;
	if ((a.any.sa_family != AF_INET && a.any.sa_family != AF_INET6) || getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 ||
	    type != SOCK_STREAM)
		return NO_CLIENT;
	const void *bytes = &a.v4.sin_addr;
	int family = a.any.sa_family;
	if (family == AF_INET6) {
		bytes = &a.v6.sin6_addr;
		if (IN6_IS_ADDR_V4MAPPED(&a.v6.sin6_addr)) {
			bytes = a.v6.sin6_addr.s6_addr + 12;
			family = AF_INET;
		}
	}
	if (!inet_ntop(family, bytes, text, sizeof text) ||
	    snprintf(path, sizeof path, "%s/addresses/%s", dir, text) >= (int)sizeof path)
		return UNKNOWN;
	long n = syscall(SYS_readlinkat, AT_FDCWD, path, name, sizeof name);
	// A link-local address stands for all with the same second half, if that was made of a MAC: ff:fe is in its middle.
	if (n < 0 && errno == ENOENT && family == AF_INET6 && a.v6.sin6_addr.s6_addr[11] == 0xff && a.v6.sin6_addr.s6_addr[12] == 0xfe) {
		memcpy(&a.v6.sin6_addr, "\xfe\x80\0\0\0\0\0\0", 8);
		if (!inet_ntop(family, bytes, text, sizeof text) ||
		    snprintf(path, sizeof path, "%s/addresses/%s", dir, text) >= (int)sizeof path)
			return UNKNOWN;
		n = syscall(SYS_readlinkat, AT_FDCWD, path, name, sizeof name);
	}
	if (n < 0 && errno == ENOENT) // the address is no node's: another client's, or that of a server to which this one connected
		return accepted ? BASE : NO_CLIENT;
	if (n <= 0 || n >= NAME) {
		failed(n < 0 ? errno : ENAMETOOLONG);
		return UNKNOWN;
	}
	name[n] = 0;
	int node = number(name);
	return node < 0 ? UNKNOWN : BASE + (unsigned)node;
}

static int put(int node) // moves the thread; the caller holds the lock; returns 0 or an errno
{
	char path[4096];
	if (snprintf(path, sizeof path, "%s/groups/%s/tasks", dir, names[node]) >= (int)sizeof path)
		return ENAMETOOLONG;
	long fd = raw_open(path, O_WRONLY);
	if (fd < 0)
		return errno;
	int e = syscall(SYS_write, fd, "0", 1L) == 1 ? 0 : errno; // ENODEV: the group was removed; the next receive tries again
	syscall(SYS_close, fd);
	return e;
}

static void insert(int fd, uint64_t w) // moves the thread where fd wants it; the caller holds the lock
{
	uint64_t gen = generation();
	unsigned accepted = (unsigned)w & ACCEPTED, what = (unsigned)w & 0x7fff;
	if (what == UNKNOWN || ((w >> 16 & 0xffffff) != (gen & 0xffffff))) {
		for (int again = 0; again < 3; again++) { // the table may change meanwhile, or names may be forgotten
			gen = generation();
			what = peer(fd, accepted);
			if (gen == generation())
				break;
		}
		if (what == UNKNOWN || gen != generation())
			return; // the next receive tries again
		if (fd < DESCRIPTORS)
			atomic_compare_exchange_strong(&known[fd], &w, WORD(USE(w), gen, accepted | what));
	}
	int node = (int)what - BASE;
	if (what == NO_CLIENT || (here == node && here_gen == gen))
		return;
	int e = put(node);
	if (e) {
		here = -1;
		failed(e);
		return;
	}
	here = node;
	here_gen = gen;
	counts->moved++;
}

// serve is called after each receive and before each transmission. If nothing has changed, it makes no system call.
static void serve(int fd)
{
	if (!dir || fd < 0 || inside)
		return;
	uint64_t gen = generation();
	uint64_t w = fd < DESCRIPTORS ? atomic_load_explicit(&known[fd], memory_order_acquire) : 0;
	unsigned what = (unsigned)w & 0x7fff;
	int fresh = what != UNKNOWN && (w >> 16 & 0xffffff) == (gen & 0xffffff);
	if (fresh && what == NO_CLIENT)
		return;
	struct timespec now = {0};
	clock_gettime(CLOCK_MONOTONIC_COARSE, &now); // this makes no system call
	int follows = atomic_exchange(&checked, now.tv_sec) != now.tv_sec;
	if (fresh && !follows && (int)what - BASE == here && here_gen == gen)
		return;
	int e = errno;
	inside = 1;
	pthread_mutex_lock(&lock);
	if (follows)
		follow();
	if (table_ino)
		insert(fd, w);
	pthread_mutex_unlock(&lock);
	inside = 0;
	errno = e;
}

// begins notes that a descriptor's number means another file from now on.
static uint64_t begins(int fd, unsigned flags)
{
	if (!dir || fd < 0 || fd >= DESCRIPTORS)
		return 0;
	uint64_t was = atomic_load(&known[fd]), w;
	do
		w = WORD(USE(was) + 1, 0, flags);
	while (!atomic_compare_exchange_weak(&known[fd], &was, w));
	return w;
}

static void prepare(void) { pthread_mutex_lock(&lock); }
static void parent(void) { pthread_mutex_unlock(&lock); }
static void child(void) { pthread_mutex_init(&lock, NULL); }

__attribute__((constructor)) static void start(void)
{
	int e = errno;
	const char *at = secure_getenv("BERTH_SYNC_DIR");
	if (at && *at == '/') {
		long fd = syscall(SYS_memfd_create, "berth-sync", 1u /* close on exec */);
		if (fd >= 0 && syscall(SYS_ftruncate, fd, 4096L) == 0) {
			void *m = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, (int)fd, 0);
			if (m != MAP_FAILED)
				counts = m;
			counts->version = VERSION;
		}
		if (fd >= 0)
			syscall(SYS_close, fd);
		pthread_atfork(prepare, parent, child);
		checked = -1;
		filled = 1;
		strcpy(names[0], "_server");
		dir = strdup(at); // the server may change its environment
	}
	errno = e;
}

// The calls of the server that the library intercepts. Constructors of other libraries may make them before the constructor of this one ran.
#define REAL(ret, name, args)                                             \
	static ret(*_Atomic real_##name) args;                            \
	static ret(*find_##name(void)) args                               \
	{                                                                 \
		if (!real_##name)                                         \
			real_##name = (ret(*) args)dlsym(RTLD_NEXT, #name); \
		return real_##name;                                       \
	}
#define PUBLIC __attribute__((visibility("default")))

// A receive of no bytes counts, too: it is the end of a connection, after which the server closes the client's files.
#define RECEIVE(name, args, pass)                  \
	REAL(ssize_t, name, args)                  \
	PUBLIC ssize_t name args                   \
	{                                          \
		ssize_t n = find_##name() pass;    \
		if (n >= 0)                        \
			serve(fd);                 \
		return n;                          \
	}
RECEIVE(read, (int fd, void *b, size_t n_), (fd, b, n_))
RECEIVE(readv, (int fd, const struct iovec *v, int c), (fd, v, c))
RECEIVE(recv, (int fd, void *b, size_t n_, int f), (fd, b, n_, f))
RECEIVE(recvfrom, (int fd, void *b, size_t n_, int f, struct sockaddr *a, socklen_t *l), (fd, b, n_, f, a, l))
RECEIVE(recvmsg, (int fd, struct msghdr *m, int f), (fd, m, f))

// A thread that got a request from another thread does not receive, but it answers. sendfile reads the disk itself.
#define ANSWER(ret, name, args, pass)          \
	REAL(ret, name, args)                  \
	PUBLIC ret name args                   \
	{                                      \
		serve(fd);                     \
		return find_##name() pass;     \
	}
ANSWER(ssize_t, write, (int fd, const void *b, size_t n), (fd, b, n))
ANSWER(ssize_t, send, (int fd, const void *b, size_t n, int f), (fd, b, n, f))
ANSWER(ssize_t, sendmsg, (int fd, const struct msghdr *m, int f), (fd, m, f))
ANSWER(ssize_t, writev, (int fd, const struct iovec *v, int c), (fd, v, c))
ANSWER(ssize_t, sendfile, (int fd, int in, off_t *o, size_t n), (fd, in, o, n))
ANSWER(ssize_t, sendfile64, (int fd, int in, off64_t *o, size_t n), (fd, in, o, n))

REAL(int, accept, (int, struct sockaddr *, socklen_t *))
PUBLIC int accept(int fd, struct sockaddr *a, socklen_t *l)
{
	int got = find_accept()(fd, a, l);
	begins(got, ACCEPTED);
	return got;
}

REAL(int, accept4, (int, struct sockaddr *, socklen_t *, int))
PUBLIC int accept4(int fd, struct sockaddr *a, socklen_t *l, int flags)
{
	int got = find_accept4()(fd, a, l, flags);
	begins(got, ACCEPTED);
	return got;
}

REAL(int, close, (int))
PUBLIC int close(int fd)
{
	// This is noted before the close, because after it the number may already be a new client of another thread. It is noted again after
	// the close, for a thread that looked the number up in between.
	uint64_t w = begins(fd, 0);
	int r = find_close()(fd);
	if (w && USE(atomic_load(&known[fd])) == USE(w)) {
		uint64_t was = atomic_load(&known[fd]);
		if (USE(was) == USE(w))
			atomic_compare_exchange_strong(&known[fd], &was, WORD(USE(w) + 1, 0, UNKNOWN));
	}
	return r;
}

// copied notes that the copy of a client's descriptor is a client's, too.
static int copied(int fd, int got)
{
	if (dir && fd != got)
		begins(got, fd >= 0 && fd < DESCRIPTORS ? (unsigned)atomic_load(&known[fd]) & ACCEPTED : 0);
	return got;
}

REAL(int, dup, (int))
PUBLIC int dup(int fd) { return copied(fd, find_dup()(fd)); }

REAL(int, dup2, (int, int))
PUBLIC int dup2(int fd, int to) { return copied(fd, find_dup2()(fd, to)); }

REAL(int, dup3, (int, int, int))
PUBLIC int dup3(int fd, int to, int flags) { return copied(fd, find_dup3()(fd, to, flags)); }
