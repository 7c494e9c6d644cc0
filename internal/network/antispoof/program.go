// Package antispoof limits what an interface of a node sends to the node's own MAC and addresses, by a BPF program that
// the kernel runs on each packet.
package antispoof

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"berth/internal/sys/bpf"
	"berth/internal/sys/mac"
)

// Rules say what an interface may send. They apply to IPv4, IPv6, ARP and neighbour discovery. Frames of other types or
// with VLAN tags, answers of DHCP servers, router advertisements and redirects are always dropped.
type Rules struct {
	MAC  mac.Address
	IPs  []netip.Addr // the interface's addresses
	Any  bool         // any address passes: only the MAC is checked
	DHCP bool         // the interface asks for an IPv4 address that is not known yet
}

// Results of a classifier (include/uapi/linux/pkt_cls.h).
const (
	goOn = -1 // TC_ACT_UNSPEC: the next filter decides
	shot = 2  // TC_ACT_SHOT
)

// Offsets on the program's stack. Each packet header has its own.
const (
	atMAC    = -8   // source MAC and type of the frame
	atARP    = -48  // 28 bytes
	atV4     = -72  // 20 bytes
	atV6     = -112 // 40 bytes
	atPorts  = -116 // 4 bytes: source and destination port; or 2 or 4 bytes of an extension header
	atTarget = -136 // 16 bytes: target address of neighbour discovery
	atOption = -144 // 8 bytes: option of neighbour discovery
	atClient = -152 // 6 bytes: the client MAC in a DHCP message
)

const (
	skb    = bpf.R6 // the packet
	cursor = bpf.R7 // offset of the next header
	next   = bpf.R8 // the protocol of the next header
	blank  = bpf.R9 // 1: the source is the unspecified address
)

const (
	ethernet    = 14 // length of its header
	vlanPresent = 20 // offset in struct __sk_buff
	loadBytes   = 26 // bpf_skb_load_bytes
)

// program assembles the program for some rules.
type program struct {
	*bpf.Asm
	Rules
	v4, v6 [][]byte
}

// code returns the program for the rules. It drops every packet that no rule passes.
func (r Rules) code() ([]bpf.Instruction, error) {
	p := &program{Asm: bpf.NewAsm(), Rules: r}
	for _, ip := range r.IPs {
		if ip.Is4() {
			p.v4 = append(p.v4, ip.AsSlice())
		} else {
			p.v6 = append(p.v6, ip.WithZone("").AsSlice())
		}
	}
	p.Copy(skb, bpf.R1)
	p.Set(blank, 0)
	p.Load(bpf.Word, bpf.R2, skb, vlanPresent)
	p.If(bpf.NotEqual, bpf.R2, 0, "drop")
	p.fetch(atMAC, 8, 6)
	p.UnlessSame(atMAC, r.MAC.HardwareAddr(), "drop")
	p.Load(bpf.Half, bpf.R2, bpf.FP, atMAC+6)
	p.If(bpf.Equal, bpf.R2, network16(unix.ETH_P_IP), "ipv4")
	p.If(bpf.Equal, bpf.R2, network16(unix.ETH_P_IPV6), "ipv6")
	p.If(bpf.Equal, bpf.R2, network16(unix.ETH_P_ARP), "arp")
	p.Goto("drop")
	p.arp()
	p.ipv4()
	p.ipv6()
	p.Label("pass")
	p.Return(goOn)
	p.Label("drop")
	p.Return(shot)
	return p.Code()
}

// network16 returns a 16-bit number in network byte order, as a program loads it.
func network16(n uint16) int32 { return int32(n>>8 | n<<8&0xff00) }

// fetch copies size bytes of the packet at offset from to the stack. A shorter packet is dropped.
func (p *program) fetch(to, size, from int32) {
	p.Set(bpf.R2, from)
	p.copyOrElse(to, size, "drop")
}

// fetchNext is fetch at an offset from cursor. For a shorter packet the program continues at short.
func (p *program) fetchNext(to, size, off int32, short string) {
	p.Copy(bpf.R2, cursor)
	if off != 0 {
		p.Add(bpf.R2, off)
	}
	p.copyOrElse(to, size, short)
}

func (p *program) copyOrElse(to, size int32, short string) {
	p.Copy(bpf.R1, skb)
	p.Copy(bpf.R3, bpf.FP)
	p.Add(bpf.R3, to)
	p.Set(bpf.R4, size)
	p.Call(loadBytes)
	p.If(bpf.NotEqual, bpf.R0, 0, short)
}

// ifOwn jumps if the bytes at an offset of the stack equal one of own; name makes its labels unique.
func (p *program) ifOwn(off int16, own [][]byte, name, to string) {
	for i, ip := range own {
		other := name + string(rune('0'+i))
		p.UnlessSame(off, ip, other)
		p.Goto(to)
		p.Label(other)
	}
}

// arp passes requests and answers from the node's own addresses, and probes for them (RFC 5227).
func (p *program) arp() {
	const sender, senderIP, targetIP = 8, 14, 24
	p.Label("arp")
	p.fetch(atARP, 28, ethernet)
	p.UnlessSame(atARP, []byte{0, 1, 8, 0, 6, 4}, "drop")
	p.UnlessSame(atARP+sender, p.MAC.HardwareAddr(), "drop")
	if p.Any {
		p.Goto("pass")
		return
	}
	p.ifOwn(atARP+senderIP, p.v4, "arp sender ", "pass")
	p.UnlessSame(atARP+senderIP, make([]byte, 4), "drop")
	if p.DHCP { // the node probes an address that it is offered
		p.Goto("pass")
		return
	}
	p.ifOwn(atARP+targetIP, p.v4, "arp target ", "pass")
	p.Goto("drop")
}

func (p *program) ipv4() {
	const fragment, protocol, source = 6, 9, 12
	p.Label("ipv4")
	p.fetch(atV4, 20, ethernet)
	p.Load(bpf.Byte, cursor, bpf.FP, atV4)
	p.Copy(bpf.R2, cursor)
	p.And(bpf.R2, 0xf0)
	p.If(bpf.NotEqual, bpf.R2, 0x40, "drop")
	p.And(cursor, 0xf)
	p.If(bpf.Less, cursor, 5, "drop")
	p.Left(cursor, 2)
	p.Add(cursor, ethernet)
	if !p.Any {
		p.ifOwn(atV4+source, p.v4, "ipv4 source ", "ipv4 own")
		p.UnlessSame(atV4+source, make([]byte, 4), "drop")
		p.Set(blank, 1)
		p.Label("ipv4 own")
	}
	p.Load(bpf.Half, bpf.R2, bpf.FP, atV4+fragment)
	p.And(bpf.R2, network16(0x1fff))
	p.If(bpf.NotEqual, bpf.R2, 0, "named") // a later fragment has no UDP header
	p.Load(bpf.Byte, bpf.R2, bpf.FP, atV4+protocol)
	p.If(bpf.NotEqual, bpf.R2, unix.IPPROTO_UDP, "named")
	p.dhcp()
}

// dhcp drops messages of a DHCP server, and messages of a client with another MAC.
func (p *program) dhcp() {
	const server, client, clientMAC = 67, 68, 8 + 28
	p.fetchNext(atPorts, 4, 0, "drop")
	p.Load(bpf.Half, bpf.R2, bpf.FP, atPorts)
	p.If(bpf.Equal, bpf.R2, network16(server), "drop")
	p.Load(bpf.Half, bpf.R2, bpf.FP, atPorts+2)
	p.If(bpf.NotEqual, bpf.R2, network16(server), "named")
	p.fetchNext(atClient, 6, clientMAC, "drop")
	p.UnlessSame(atClient, p.MAC.HardwareAddr(), "drop")
	p.Load(bpf.Half, bpf.R2, bpf.FP, atPorts)
	p.If(bpf.Equal, bpf.R2, network16(client), "pass") // even without a source address
	p.Label("named")
	p.If(bpf.Equal, blank, 1, "drop")
	p.Goto("pass")
}

// ownV6 jumps if the IPv6 address at an offset of the stack is the node's: one of its addresses, or one whose second
// half is derived from the node's MAC.
func (p *program) ownV6(off int16, name, to string) {
	p.ifOwn(off, p.v6, name, to)
	half := p.MAC.EUI64()
	p.UnlessSame(off+8, half[:], name+"else")
	p.Load(bpf.Byte, bpf.R2, bpf.FP, off)
	p.If(bpf.NotEqual, bpf.R2, 0xff, to) // multicast
	p.Label(name + "else")
}

// mostHeaders is how many IPv6 extension headers are read. A packet with more is dropped.
const mostHeaders = 4

func (p *program) ipv6() {
	const nextHeader, source = 6, 8
	p.Label("ipv6")
	p.fetch(atV6, 40, ethernet)
	if !p.Any {
		p.ownV6(atV6+source, "ipv6 source ", "ipv6 own")
	}
	p.UnlessSame(atV6+source, make([]byte, 16), map[bool]string{true: "ipv6 own", false: "drop"}[p.Any])
	p.Set(blank, 1)
	p.Label("ipv6 own")
	p.Set(cursor, ethernet+40)
	p.Load(bpf.Byte, next, bpf.FP, atV6+nextHeader)
	for i := range mostHeaders {
		p.extension("header " + string(rune('0'+i)) + " ")
	}
	for _, more := range []int32{0, 43, 44, 51, 60} {
		p.If(bpf.Equal, next, more, "drop")
	}
	p.If(bpf.Equal, next, unix.IPPROTO_ICMPV6, "icmp")
	p.If(bpf.Equal, blank, 1, "drop")
	p.If(bpf.NotEqual, next, unix.IPPROTO_UDP, "pass")
	p.fetchNext(atPorts, 4, 0, "drop")
	p.Load(bpf.Half, bpf.R2, bpf.FP, atPorts)
	const dhcp6Server = 547
	p.If(bpf.Equal, bpf.R2, network16(dhcp6Server), "drop")
	p.Goto("pass")
	p.icmp()
}

// extension steps over an extension header, if one follows (RFC 8200, 4; RFC 4302 for 51). A later fragment has no
// header of its protocol, so only its source is checked.
func (p *program) extension(name string) {
	for _, kind := range []int32{0, 43, 60} { // hop-by-hop options, routing, destination options
		p.If(bpf.Equal, next, kind, name+"options")
	}
	p.If(bpf.Equal, next, 44, name+"fragment")
	p.If(bpf.NotEqual, next, 51, name+"none")
	p.fetchNext(atPorts, 2, 0, "drop") // authentication
	p.Load(bpf.Byte, next, bpf.FP, atPorts)
	p.Load(bpf.Byte, bpf.R2, bpf.FP, atPorts+1)
	p.Add(bpf.R2, 2)
	p.Left(bpf.R2, 2)
	p.AddReg(cursor, bpf.R2)
	p.Goto(name + "none")
	p.Label(name + "fragment")
	p.fetchNext(atPorts, 4, 0, "drop")
	p.Load(bpf.Half, bpf.R2, bpf.FP, atPorts+2)
	p.And(bpf.R2, network16(0xfff8))
	p.If(bpf.NotEqual, bpf.R2, 0, "named 6")
	p.Load(bpf.Byte, next, bpf.FP, atPorts)
	p.Add(cursor, 8)
	p.Goto(name + "none")
	p.Label(name + "options")
	p.fetchNext(atPorts, 2, 0, "drop")
	p.Load(bpf.Byte, next, bpf.FP, atPorts)
	p.Load(bpf.Byte, bpf.R2, bpf.FP, atPorts+1)
	p.Add(bpf.R2, 1)
	p.Left(bpf.R2, 3)
	p.AddReg(cursor, bpf.R2)
	p.Label(name + "none")
}

// icmp limits neighbour discovery (RFC 4861) to the node's own addresses and MAC.
func (p *program) icmp() {
	const (
		routerSolicitation, routerAdvertisement, solicitation, advertisement, redirect = 133, 134, 135, 136, 137
		report, done, report2                                                          = 131, 132, 143 // of multicast listeners
	)
	p.Label("icmp")
	p.fetchNext(atPorts, 1, 0, "drop")
	p.Load(bpf.Byte, bpf.R2, bpf.FP, atPorts)
	p.If(bpf.Equal, bpf.R2, routerAdvertisement, "drop")
	p.If(bpf.Equal, bpf.R2, redirect, "drop")
	for _, silent := range []int32{report, done, report2} { // also without a source address
		p.If(bpf.Equal, bpf.R2, silent, "pass")
	}
	p.If(bpf.Equal, bpf.R2, routerSolicitation, "asks for routers")
	p.If(bpf.Equal, bpf.R2, solicitation, "solicits")
	p.If(bpf.Equal, bpf.R2, advertisement, "advertises")
	p.Label("named 6")
	p.If(bpf.Equal, blank, 1, "drop")
	p.Goto("pass")

	p.Label("advertises")
	p.If(bpf.Equal, blank, 1, "drop")
	p.fetchNext(atTarget, 16, 8, "drop")
	if !p.Any {
		p.ownV6(atTarget, "advertised ", "its option")
		p.Goto("drop")
	} else {
		p.Goto("its option")
	}
	p.Label("solicits")
	p.If(bpf.NotEqual, blank, 1, "its option")
	p.fetchNext(atTarget, 16, 8, "drop")
	if !p.Any {
		p.ownV6(atTarget, "solicited ", "its option")
		p.Goto("drop")
	}
	p.Label("its option")
	p.Add(cursor, 16)
	p.Label("asks for routers")
	p.fetchNext(atOption, 8, 8, "pass")
	p.Load(bpf.Byte, bpf.R2, bpf.FP, atOption+1)
	p.If(bpf.NotEqual, bpf.R2, 1, "drop") // length in units of 8 bytes
	p.fetchNext(atPorts, 1, 16, "one option")
	p.Goto("drop")
	p.Label("one option")
	p.Load(bpf.Byte, bpf.R2, bpf.FP, atOption)
	p.If(bpf.Equal, bpf.R2, 1, "a MAC") // source link-layer address; 2: target
	p.If(bpf.NotEqual, bpf.R2, 2, "pass")
	p.Label("a MAC")
	p.UnlessSame(atOption+2, p.MAC.HardwareAddr(), "drop")
	p.Goto("pass")
}
