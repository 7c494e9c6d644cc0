// Package probe counts the block I/O of a file server's disk by the peer that asked for it and by the group that it is charged to.
// Two BPF programs note which peer a thread serves, when it receives from a TCP connection and when a process is forked; a third
// adds up the I/O that threads submit.
//
// A request belongs to the peer that its thread serves. A thread serves the peer that it last received from, over a connection that
// it accepted: connections that the server made itself, to a directory or to another server, do not count. A thread that received
// nothing serves the peer of its process, else the peer of its parent or of its parent's parent, if that is a single peer. If there
// are several, the peer is unknown, and the result says so. A thread of the kernel serves no peer, unless it received something
// itself (nfsd).
//
// The programs are compiled in advance, so a host needs no compiler: probe.bpf.c is the source and probe.o the object, made by the
// command below with Debian 12's packages clang-14, llvm-14 and libbpf-dev. The kernel needs its BTF (CONFIG_DEBUG_INFO_BTF) and
// BPF trampolines (x86-64: 5.11; arm64: 6.0). Which programs a kernel takes is found by trying: [Probe.Ways] says which it took.
package probe

//go:generate clang-14 -O2 -g -Wall -Werror -target bpf -mcpu=v3 -fdebug-compilation-dir=. -I/usr/include -c probe.bpf.c -o probe.o
//go:generate llvm-strip-14 -g probe.o
//go:generate sh -c "sha256sum probe.bpf.c probe.o > probe.sum"

import (
	"cmp"
	_ "embed" // the object
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"berth/internal/sys/bpf/compiled"
)

//go:embed probe.o
var object []byte

// Class is a class of block I/O. probe.bpf.c has the same numbers.
type Class uint32

// The classes.
const (
	Read        Class = iota // by a thread that may serve a peer; also of metadata
	Write                    // by such a thread: direct, synchronous, or flushed by it
	Journal                  // writes of the file system's journal and of its metadata, by whomever
	Writeback                // other writes by the kernel's threads: what was written to memory before
	KernelRead               // reads by the kernel's threads, among them what a limit held, if [Ways.Held]
	KernelWrite              // synchronous writes by them, among them what a limit held, if [Ways.Held]
)

// By is how the peer of a request was found. probe.bpf.c has the same numbers.
type By uint32

// The ways.
const (
	ByNone    By = iota // it was not: neither the thread nor its process or their parents received anything
	ByThread            // the thread received from it
	ByProcess           // its process received from it, and from no other peer
	ByParent            // a parent of its process did
	BySeveral           // it was not: its process received from several peers, the thread from none
	ByGroup             // a limit held the request, and threads for one peer only waited in the group that it was charged to
)

// Sum is the I/O that was done for one peer and charged to one group.
type Sum struct {
	Peer            netip.Addr // unmapped; not valid with ByNone and BySeveral
	Group           uint64     // id of the group: the inode number of its folder
	Class           Class
	By              By
	Bytes, Requests uint64
}

// Wait says that threads waited for I/O in a group. It is noted only if [Ways.Held].
type Wait struct {
	Peer  netip.Addr // as in Sum
	Group uint64
	By    By
	Times uint64
}

// Counts are the counts since Open.
type Counts struct {
	Sums  []Sum // the largest first
	Waits []Wait
	Lost  uint64 // bytes in no sum, because there are too many peers and groups
}

// Ways are the places of the kernel that tell the probe what it counts.
type Ways struct {
	Receive string `json:"receive"` // sock_recv_length or tcp_recvmsg
	Submit  string `json:"submit"`  // submit_bio or block_bio_queue
}

// Held reports whether I/O that a limit holds is told by the kernel's thread that lets it go. The peer of such a request is
// unknown, but [Wait] tells which peers waited.
func (w Ways) Held() bool { return w.Submit == queued }

// The names of the programs in probe.bpf.c, by the place that each is at.
var programs = map[string]string{
	"sock_recv_length": "receive", "tcp_recvmsg": "receive_tcp", forked: "fork_of", submitted: "submit", queued: "queue",
	switched: "wait",
}

const (
	forked    = "sched_process_fork"
	submitted = "submit_bio"
	queued    = "block_bio_queue"
	switched  = "sched_switch"
)

// Probe counts until it is closed.
type Probe struct {
	all   *compiled.Object
	links []link.Link
	ways  Ways
}

// Open starts to count the I/O of a disk with all its partitions, of one partition, or of a volume: that of the device with this
// number, not of the devices below it. If this kernel cannot do it, the error is a [refuse.Cannot].
func Open(major, minor uint32) (*Probe, error) {
	return open(major, minor, []string{"sock_recv_length", "tcp_recvmsg"}, []string{submitted, queued})
}

func open(major, minor uint32, receive, submit []string) (*Probe, error) {
	all, err := compiled.Load(object, "the audit probe", "", ebpf.MapKV{Key: diskNumber, Value: uint64(major<<20 | minor)})
	if err != nil {
		return nil, err
	}
	p := &Probe{all: all}
	for _, o := range []struct {
		used   *string
		places []string
	}{{new(string), []string{forked}}, {&p.ways.Receive, receive}, {&p.ways.Submit, submit}} {
		if *o.used, err = p.first(o.places); err != nil {
			return nil, errors.Join(err, p.Close())
		}
	}
	if p.ways.Held() {
		if _, err = p.first([]string{switched}); err != nil {
			return nil, errors.Join(err, p.Close())
		}
	}
	return p, nil
}

// first attaches the first program that the kernel takes, and returns its place.
func (p *Probe) first(places []string) (string, error) {
	var errs []error
	for _, place := range places {
		l, err := p.all.Attach(programs[place])
		if err == nil {
			p.links = append(p.links, l)
			return place, nil
		}
		errs = append(errs, p.all.Refused("its program at "+place, err))
	}
	return "", errs[0] // the others are for older kernels
}

// Ways returns the places that this kernel lets the probe look at.
func (p *Probe) Ways() Ways { return p.ways }

// Read returns the counts since Open.
func (p *Probe) Read() (c Counts, err error) {
	err = each(p.all.Maps["sums"], func(k key, v value) {
		c.Sums = append(c.Sums, Sum{Peer: k.peer(), Group: k.Group, Class: k.Class, By: k.By, Bytes: v.Bytes, Requests: v.Requests})
	})
	if err == nil {
		err = each(p.all.Maps["waits"], func(k key, v value) {
			c.Waits = append(c.Waits, Wait{Peer: k.peer(), Group: k.Group, By: k.By, Times: v.Requests})
		})
	}
	if err == nil {
		err = p.all.Maps["numbers"].Lookup(lostNumber, &c.Lost)
	}
	if err != nil {
		return Counts{}, fmt.Errorf("read what the audit probe counted: %w", err)
	}
	slices.SortFunc(c.Sums, func(a, b Sum) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return c, nil
}

// The places in the map numbers (probe.bpf.c).
const diskNumber, lostNumber = uint32(0), uint32(1)

// key and value are what the maps hold (probe.bpf.c).
type (
	key struct {
		Peer  [16]byte
		Group uint64
		Class Class
		By    By
	}
	value struct{ Bytes, Requests uint64 }
)

func (k key) peer() netip.Addr {
	if k.By == ByNone || k.By == BySeveral {
		return netip.Addr{}
	}
	return netip.AddrFrom16(k.Peer).Unmap()
}

func each(m *ebpf.Map, do func(key, value)) error {
	var k key
	var v value
	all := m.Iterate()
	for all.Next(&k, &v) {
		do(k, v)
	}
	return all.Err()
}

// Close takes the probe out of the kernel.
func (p *Probe) Close() error {
	var errs []error
	for _, l := range p.links {
		errs = append(errs, l.Close())
	}
	return errors.Join(append(errs, p.all.Close())...)
}
