package instances

import (
	"encoding/binary"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"berth/internal/sys/bpf"
)

// Offsets in struct bpf_sk_lookup (include/uapi/linux/bpf.h).
const (
	family   = 8
	protocol = 12
	remote4  = 16
	remote6  = 20
	local    = 60 // the port, as a number of this machine
)

// The helpers of the kernel that the program calls.
const (
	mapLookup = 1
	release   = 86
	assign    = 124
)

// Results of the program.
const (
	drop = 0
	pass = 1
)

// key is how the tables have an address: 16 bytes, for IPv4 as ::ffff:a.b.c.d.
func key(a netip.Addr) []byte {
	b := a.Unmap().As16()
	return b[:]
}

// load loads the program that chooses the listening socket for a new connection of TCP. A connection to the server's port goes to the
// instance of the node whose address it comes from, and is refused if that one does not listen; it goes to the server's own socket if it
// comes from no node. A connection to an instance's own port is treated in the same way, and refused if it comes from no node: no client
// reaches the instance of another node. Datagrams of UDP from a node to the server's port are dropped: no instance would get them.
func load(port uint16, nodes, sockets, ports *bpf.Map) (*os.File, error) {
	const (
		ctx    = bpf.R6
		chosen = bpf.R7
		result = bpf.R8
		own    = bpf.R9 // 1: it goes to the port of an instance; 2: it is of UDP
		atKey  = -16
		atPort = -24
	)
	p := bpf.NewAsm()
	find := func(in *bpf.Map, at int32) {
		p.Map(bpf.R1, in)
		p.Copy(bpf.R2, bpf.FP)
		p.Add(bpf.R2, at)
		p.Call(mapLookup)
	}
	p.Copy(ctx, bpf.R1)
	p.Load(bpf.Word, bpf.R2, ctx, protocol)
	p.Set(own, 0)
	p.If(bpf.Equal, bpf.R2, unix.IPPROTO_TCP, "port")
	p.If(bpf.NotEqual, bpf.R2, unix.IPPROTO_UDP, "pass")
	p.Set(own, 2)
	p.Label("port")
	p.Load(bpf.Word, bpf.R2, ctx, local)
	p.If(bpf.Equal, bpf.R2, int32(port), "whose")
	p.If(bpf.Equal, own, 2, "pass")
	p.Store(bpf.Word, bpf.FP, bpf.R2, atPort)
	find(ports, atPort)
	p.IfNull(bpf.R0, "pass")
	p.Set(own, 1)
	p.Label("whose")
	p.Load(bpf.Word, bpf.R2, ctx, family)
	p.If(bpf.Equal, bpf.R2, unix.AF_INET, "ipv4")
	for i := range int16(4) {
		p.Load(bpf.Word, bpf.R2, ctx, remote6+4*i)
		p.Store(bpf.Word, bpf.FP, bpf.R2, atKey+4*i)
	}
	p.Goto("find")
	p.Label("ipv4")
	for i, b := range [3]uint32{0, 0, binary.NativeEndian.Uint32([]byte{0, 0, 0xff, 0xff})} {
		p.StoreValue(bpf.Word, bpf.FP, int16(atKey+4*i), int32(b))
	}
	p.Load(bpf.Word, bpf.R2, ctx, remote4)
	p.Store(bpf.Word, bpf.FP, bpf.R2, atKey+12)
	p.Label("find")
	find(nodes, atKey)
	p.IfNull(bpf.R0, "sibling")
	p.Goto("node")
	p.Label("sibling") // a link-local address stands for all with the same second half, if that was made of a MAC: ff:fe is in its middle
	p.Load(bpf.Word, bpf.R2, ctx, family)
	p.If(bpf.Equal, bpf.R2, unix.AF_INET, "nobody")
	p.Load(bpf.Byte, bpf.R2, bpf.FP, atKey+11)
	p.If(bpf.NotEqual, bpf.R2, 0xff, "nobody")
	p.Load(bpf.Byte, bpf.R2, bpf.FP, atKey+12)
	p.If(bpf.NotEqual, bpf.R2, 0xfe, "nobody")
	p.StoreValue(bpf.Word, bpf.FP, atKey, int32(binary.NativeEndian.Uint32([]byte{0xfe, 0x80, 0, 0})))
	p.StoreValue(bpf.Word, bpf.FP, atKey+4, 0)
	find(nodes, atKey)
	p.IfNull(bpf.R0, "nobody")
	p.Label("node")
	p.If(bpf.Equal, own, 2, "drop")
	find(sockets, atKey)
	p.IfNull(bpf.R0, "drop")
	p.Copy(chosen, bpf.R0)
	p.Copy(bpf.R1, ctx)
	p.Copy(bpf.R2, chosen)
	p.Set(bpf.R3, 0)
	p.Call(assign)
	p.Copy(result, bpf.R0)
	p.Copy(bpf.R1, chosen)
	p.Call(release)
	p.If(bpf.Equal, result, 0, "pass")
	p.Label("drop")
	p.Return(drop)
	p.Label("nobody")
	p.If(bpf.Equal, own, 1, "closed")
	p.Label("pass")
	p.Return(pass)
	p.Label("closed")
	p.Return(drop)
	code, err := p.Code()
	if err != nil {
		return nil, err
	}
	return bpf.LoadFor(unix.BPF_PROG_TYPE_SK_LOOKUP, unix.BPF_SK_LOOKUP, "berth_steer", code)
}
