package network

import (
	"encoding/binary"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"berth/internal/sys/bpf"
)

// Offsets in a frame of Ethernet, and in the entry of a node's address.
const (
	frameLength = 0   // in struct __sk_buff
	smallest    = 256 // bytes: acknowledgements are smaller, and requests to read of NFS and SFTP

	frameType  = 12
	source4    = 14 + 12
	target4    = 14 + 16
	source6    = 14 + 8
	target6    = 14 + 24
	readClass  = 0
	writeClass = 4
)

// The helpers of the kernel that the programs call (include/uapi/linux/bpf.h).
const (
	mapLookup = 1
	loadBytes = 26
)

// Results of a classifier that does not act by itself: else it is the number of a class.
const (
	noMatch  = 0
	anyMatch = -1
)

// mostAddresses bounds the table of nodes' addresses on one interface.
const mostAddresses = 1 << 16

// key is how the table has an address: 16 bytes, for IPv4 as ::ffff:a.b.c.d.
func key(a netip.Addr) []byte {
	b := a.Unmap().As16()
	return b[:]
}

// value is a node's entry of the table: the classes of what it reads and writes; 0: no limit.
func value(read, write uint32) []byte {
	return binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(nil, read), write)
}

// load loads the program that finds the class of a frame by an address in it, at these offsets for IPv4 and IPv6; or, with match,
// whether there is one.
func load(name string, table *bpf.Map, at4, at6 int32, class int16, match bool) (*os.File, error) {
	const (
		skb   = bpf.R6
		atKey = -16
		atTyp = -24
	)
	p := bpf.NewAsm()
	fetch := func(to, from, size int32) {
		p.Copy(bpf.R1, skb)
		p.Set(bpf.R2, from)
		p.Copy(bpf.R3, bpf.FP)
		p.Add(bpf.R3, to)
		p.Set(bpf.R4, size)
		p.Call(loadBytes)
		p.If(bpf.NotEqual, bpf.R0, 0, "none")
	}
	p.Copy(skb, bpf.R1)
	// Frames that acknowledge the other direction's, or ask for it, are free: else what a node writes would slow down what it reads.
	p.Load(bpf.Word, bpf.R2, skb, frameLength)
	p.If(bpf.Less, bpf.R2, smallest, "none")
	fetch(atTyp, frameType, 2)
	p.Load(bpf.Half, bpf.R2, bpf.FP, atTyp)
	p.If(bpf.Equal, bpf.R2, network16(unix.ETH_P_IP), "ipv4")
	p.If(bpf.Equal, bpf.R2, network16(unix.ETH_P_IPV6), "ipv6")
	p.Goto("none")
	p.Label("ipv4")
	for i, b := range [3]uint32{0, 0, binary.NativeEndian.Uint32([]byte{0, 0, 0xff, 0xff})} {
		p.StoreValue(bpf.Word, bpf.FP, int16(atKey+4*i), int32(b))
	}
	fetch(atKey+12, at4, 4)
	p.Goto("find")
	find := func() {
		p.Map(bpf.R1, table)
		p.Copy(bpf.R2, bpf.FP)
		p.Add(bpf.R2, atKey)
		p.Call(mapLookup)
	}
	p.Label("ipv6")
	fetch(atKey, at6, 16)
	find()
	p.IfNull(bpf.R0, "sibling")
	p.Goto("found")
	p.Label("sibling") // a link-local address stands for all with the same second half, if that was made of a MAC: ff:fe is in its middle
	p.Load(bpf.Byte, bpf.R2, bpf.FP, atKey+11)
	p.If(bpf.NotEqual, bpf.R2, 0xff, "none")
	p.Load(bpf.Byte, bpf.R2, bpf.FP, atKey+12)
	p.If(bpf.NotEqual, bpf.R2, 0xfe, "none")
	p.StoreValue(bpf.Word, bpf.FP, atKey, int32(binary.NativeEndian.Uint32([]byte{0xfe, 0x80, 0, 0})))
	p.StoreValue(bpf.Word, bpf.FP, atKey+4, 0)
	p.Label("find")
	find()
	p.IfNull(bpf.R0, "none")
	p.Label("found")
	p.Load(bpf.Word, bpf.R0, bpf.R0, class)
	if match {
		p.If(bpf.Equal, bpf.R0, 0, "none")
		p.Return(anyMatch)
	} else {
		p.Exit()
	}
	p.Label("none")
	p.Return(noMatch)
	code, err := p.Code()
	if err != nil {
		return nil, err
	}
	return bpf.Load(unix.BPF_PROG_TYPE_SCHED_CLS, name, code)
}

// network16 is a 16-bit number in network byte order, as a program loads it.
func network16(n uint16) int32 {
	return int32(binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, n)))
}
