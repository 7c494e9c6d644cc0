package nodelog

import (
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Set empties the pipes of many nodes. An idle node costs a descriptor and some hundred bytes.
type Set struct {
	epoll int
	lost  func(node string, why error) // called once when a node's output begins to be dropped
	all   pace

	mu      sync.Mutex
	nodes   map[string]*reader
	readers map[int32]*reader // by the id in reader, which epoll returns
	last    int32
}

// reader is one node's pipe.
type reader struct {
	set  *Set
	node string
	id   int32
	ino  uint64
	log  Log
	own  pace

	mu   *sync.Mutex // held while bytes are moved to the log, from this pipe or from the node's previous one
	pipe int         // -1: closed
	bad  bool        // bytes are dropped
}

// NewSet returns a set that empties pipes until the process ends.
func NewSet(lost func(node string, why error)) (*Set, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watch the pipes of logs: %w", err)
	}
	s := &Set{epoll: ep, lost: lost, all: pace{rate: HostRate}, nodes: map[string]*reader{}, readers: map[int32]*reader{}}
	go s.run()
	return s, nil
}

func (s *Set) run() {
	events := make([]unix.EpollEvent, 64)
	for {
		n, err := unix.EpollWait(s.epoll, events, -1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
		for _, e := range events[:max(n, 0)] {
			s.mu.Lock()
			r := s.readers[e.Fd]
			s.mu.Unlock()
			if r != nil {
				// One goroutine each: a node that makes its own pipe slow, by a write from memory that takes long to be
				// read in, delays only itself.
				go r.turn()
			}
		}
	}
}

// Open begins to empty a node's pipe, unless the set empties it already. A node without a pipe has no log.
func (s *Set) Open(node string, l Log) error {
	fd, err := unix.Open(l.Pipe, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var st unix.Stat_t
	if err == nil {
		err = unix.Fstat(fd, &st)
	}
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFIFO {
		err = errors.New("it is no pipe")
	}
	if err != nil {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
		return fmt.Errorf("open the pipe to the log of node %s: %w", node, err)
	}
	s.mu.Lock()
	before := s.nodes[node]
	if before != nil && before.ino == st.Ino {
		s.mu.Unlock()
		return unix.Close(fd)
	}
	if before != nil { // the pipe of a failed start, or of a node whose end was not reported
		s.mu.Unlock()
		s.Finish(node, time.Second)
		s.mu.Lock()
	}
	s.last++
	r := &reader{set: s, node: node, id: s.last, ino: st.Ino, log: l, own: pace{rate: NodeRate}, mu: &sync.Mutex{}, pipe: fd}
	if before != nil {
		r.mu = before.mu
	}
	err = r.watch(unix.EPOLL_CTL_ADD)
	if err == nil {
		s.nodes[node], s.readers[r.id] = r, r
	}
	s.mu.Unlock()
	if err != nil {
		return errors.Join(fmt.Errorf("watch the pipe to the log of node %s: %w", node, err), unix.Close(fd))
	}
	return nil
}

// watch asks epoll for one event. Data that the node writes after that event wakes no thread until watch is called again.
func (r *reader) watch(how int) error {
	return unix.EpollCtl(r.set.epoll, how, r.pipe, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: r.id})
}

// Flush returns when everything that the node wrote before the call is in its log, or after within.
func (s *Set) Flush(node string, within time.Duration) { s.do(node, within, (*reader).flush) }

// Finish is Flush for a node that has ended. Data that other processes write to its pipe later is not read.
func (s *Set) Finish(node string, within time.Duration) { s.do(node, within, (*reader).finish) }

func (s *Set) do(node string, within time.Duration, f func(*reader)) {
	s.mu.Lock()
	r := s.nodes[node]
	s.mu.Unlock()
	if r == nil {
		return
	}
	done := make(chan struct{})
	go func() { f(r); close(done) }()
	late := time.NewTimer(within)
	defer late.Stop()
	select {
	case <-done:
	case <-late.C:
	}
}

// Copies returns copies of all open pipes. While one is open, the data in its pipe is not lost. The copies stay open when
// this process executes another program.
func (s *Set) Copies() (fds []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.nodes {
		if fd, err := unix.Dup(r.pipe); err == nil { // an error: it was closed just now
			fds = append(fds, fd)
		}
	}
	return fds
}

// turn moves one batch and asks for the next event, when the pace allows it.
func (r *reader) turn() {
	r.mu.Lock()
	defer r.mu.Unlock()
	n, more := r.take()
	if !more {
		return
	}
	now, cost := time.Now(), max(n, turnCost)
	if wait := max(r.own.take(cost, now), r.set.all.take(cost, now)); wait > 0 {
		time.AfterFunc(wait, r.arm)
		return
	}
	_ = r.watch(unix.EPOLL_CTL_MOD)
}

func (r *reader) arm() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pipe >= 0 {
		_ = r.watch(unix.EPOLL_CTL_MOD)
	}
}

// take moves one batch; more is false at the end of the pipe.
func (r *reader) take() (n int, more bool) {
	if r.pipe < 0 {
		return 0, false
	}
	n, lost, err := r.log.take(r.pipe)
	if lost != nil && !r.bad && !errors.Is(lost, fs.ErrNotExist) { // the node was removed
		r.set.lost(r.node, lost)
	}
	if n > 0 {
		r.bad = lost != nil
	}
	if n == 0 && err == nil {
		r.close()
		return 0, false
	}
	return n, true // also after an error of another cause, such as a keeper without free descriptors: it tries again
}

func (r *reader) flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	// At most one full pipe: while there is a writer, the pipe may never be empty.
	for left := most; left > 0; {
		n, more := r.take()
		if n == 0 || !more {
			return
		}
		left -= n
	}
}

func (r *reader) finish() {
	r.flush()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.close()
}

// close closes the pipe. The kernel frees the pipe and its content if no other process has it open.
func (r *reader) close() {
	if r.pipe < 0 {
		return
	}
	_ = unix.Close(r.pipe)
	r.pipe = -1
	s := r.set
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.readers, r.id)
	if s.nodes[r.node] == r {
		delete(s.nodes, r.node)
	}
}
