package portblock

import (
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"

	"berth/internal/sys/bpf"
)

// Offsets in struct __sk_buff (include/uapi/linux/bpf.h).
const (
	atMark     = 8
	atProtocol = 16
)

const loadBytes = 26 // bpf_skb_load_bytes

// Offsets on the program's stack.
const (
	atIP    = -40 // 40 bytes: the packet's first header
	atPorts = -44 // 4 bytes: source and destination port
)

// code assembles the program: it returns 0, which drops the packet, or 1. The kernel calls it with each IP packet that a socket
// of the group sends, before the packet is cut into fragments.
//
// A packet with an IPv6 extension header before that of TCP or UDP that a program can ask for is dropped, wherever it goes: any
// program may set a routing header, behind which the port and the last address are out of sight. The kernel's own hop-by-hop
// header (of packets larger than 64 KiB) passes: other ones take NET_RAW (ipv6_sockglue.c), which no node has.
func (r Rule) code() ([]bpf.Instruction, error) {
	a := bpf.NewAsm()
	a.Copy(bpf.R6, bpf.R1)
	a.Load(bpf.Word, bpf.R2, bpf.R6, atMark)
	a.If(bpf.Equal, bpf.R2, Mark, "pass")
	a.Load(bpf.Word, bpf.R7, bpf.R6, atProtocol)
	a.If(bpf.Equal, bpf.R7, network16(unix.ETH_P_IPV6), "ipv6")
	a.If(bpf.NotEqual, bpf.R7, network16(unix.ETH_P_IP), "pass")

	fetch(a, atIP, 20)
	a.Load(bpf.Byte, bpf.R8, bpf.FP, atIP+9)
	a.Load(bpf.Byte, bpf.R7, bpf.FP, atIP)
	a.And(bpf.R7, 0xf)
	a.Left(bpf.R7, 2)
	r.ifTo(a, atIP+16, 4, "protocol")
	a.Label("ipv6")
	fetch(a, atIP, 40)
	a.Load(bpf.Byte, bpf.R8, bpf.FP, atIP+6)
	a.Set(bpf.R7, 40)
	for _, header := range []int32{unix.IPPROTO_ROUTING, unix.IPPROTO_FRAGMENT, unix.IPPROTO_AH, unix.IPPROTO_DSTOPTS} {
		a.If(bpf.Equal, bpf.R8, header, "drop")
	}
	r.ifTo(a, atIP+24, 16, "protocol")

	a.Label("protocol")
	for _, p := range []int32{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP, unix.IPPROTO_UDPLITE} {
		a.If(bpf.Equal, bpf.R8, p, "ports")
	}
	a.Goto("pass")
	a.Label("ports")
	a.Copy(bpf.R1, bpf.R6)
	a.Copy(bpf.R2, bpf.R7)
	a.Copy(bpf.R3, bpf.FP)
	a.Add(bpf.R3, atPorts)
	a.Set(bpf.R4, 4)
	a.Call(loadBytes)
	a.If(bpf.NotEqual, bpf.R0, 0, "drop")
	a.Load(bpf.Half, bpf.R2, bpf.FP, atPorts+2)
	for _, port := range r.Ports {
		a.If(bpf.Equal, bpf.R2, network16(port), "drop")
	}
	a.Label("pass")
	a.Return(1)
	a.Label("drop")
	a.Return(0)
	return a.Code()
}

// ifTo jumps if the address at an offset of the stack is one of the rule's, or the rule is for all. Else the packet passes.
func (r Rule) ifTo(a *bpf.Asm, off int16, size int, to string) {
	if len(r.Servers) == 0 {
		a.Goto(to)
		return
	}
	for i, ip := range r.Servers {
		if b := ip.Unmap().AsSlice(); len(b) == size {
			other := to + string(rune('a'+size)) + string(rune('0'+i))
			a.UnlessSame(off, b, other)
			a.Goto(to)
			a.Label(other)
		}
	}
	a.Goto("pass")
}

// fetch copies the beginning of the packet to the stack. A shorter packet passes: it holds no port.
func fetch(a *bpf.Asm, to, size int32) {
	a.Copy(bpf.R1, bpf.R6)
	a.Set(bpf.R2, 0)
	a.Copy(bpf.R3, bpf.FP)
	a.Add(bpf.R3, to)
	a.Set(bpf.R4, size)
	a.Call(loadBytes)
	a.If(bpf.NotEqual, bpf.R0, 0, "pass")
}

// network16 returns the number that a program reads for a value in network order.
func network16(v uint16) int32 {
	return int32(binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v)))
}

// sorted returns the rule in the one order that its program has.
func (r Rule) sorted() Rule {
	ports := slices.Clone(r.Ports)
	slices.Sort(ports)
	return Rule{Servers: r.Servers, Ports: slices.Compact(ports)}
}
