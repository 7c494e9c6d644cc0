package antispoof

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth/internal/sys/bpf"
	"berth/internal/sys/mac"
	"berth/test/testkit"
)

var (
	own   = net.HardwareAddr{2, 0, 0x5e, 0x10, 0, 1}
	other = net.HardwareAddr{2, 0, 0x5e, 0x10, 0, 2}
	all6  = netip.MustParseAddr("ff02::1")
)

func ip(s string) netip.Addr { return netip.MustParseAddr(s) }

func frame(src net.HardwareAddr, kind uint16, body ...[]byte) []byte {
	f := append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, src...)
	f = binary.BigEndian.AppendUint16(f, kind)
	return append(f, slices.Concat(body...)...)
}

func arp(sender net.HardwareAddr, op byte, from, target string) []byte {
	b := append([]byte{0, 1, 8, 0, 6, 4, 0, op}, sender...)
	b = append(append(b, ip(from).AsSlice()...), make([]byte, 6)...)
	return frame(own, 0x806, b, ip(target).AsSlice())
}

func v4(from string, protocol byte, fragment uint16, body ...[]byte) []byte {
	return v4options(from, protocol, fragment, nil, body...)
}

func v4options(from string, protocol byte, fragment uint16, options []byte, body ...[]byte) []byte {
	h := make([]byte, 20)
	h[0], h[8], h[9] = 0x45+byte(len(options)/4), 64, protocol
	binary.BigEndian.PutUint16(h[6:], fragment)
	copy(h[12:], ip(from).AsSlice())
	copy(h[16:], []byte{255, 255, 255, 255})
	return frame(own, 0x800, h, options, slices.Concat(body...))
}

func udp(from, to uint16) []byte {
	b := binary.BigEndian.AppendUint16(nil, from)
	return append(binary.BigEndian.AppendUint16(b, to), 0, 8, 0, 0)
}

func bootp(mac net.HardwareAddr) []byte {
	b := make([]byte, 240)
	b[0], b[1], b[2] = 1, 1, 6
	copy(b[28:], mac)
	return b
}

func v6(from string, next byte, body ...[]byte) []byte {
	all := slices.Concat(body...)
	h := []byte{0x60, 0, 0, 0, byte(len(all) >> 8), byte(len(all)), next, 255}
	h = append(append(h, ip(from).AsSlice()...), all6.AsSlice()...)
	return frame(own, 0x86dd, h, all)
}

// nd returns a neighbour discovery message with options.
func nd(kind byte, target string, options ...[]byte) []byte {
	b := []byte{kind, 0, 0, 0, 0, 0, 0, 0}
	if target != "" {
		b = append(b, ip(target).AsSlice()...)
	}
	return append(b, slices.Concat(options...)...)
}

func option(kind byte, mac net.HardwareAddr) []byte { return append([]byte{kind, 1}, mac...) }

// header returns an extension header of units times 8 bytes.
func header(next, units byte) []byte {
	return append([]byte{next, units - 1}, make([]byte, 8*int(units)-2)...)
}

func fragment(next byte, offset uint16, more bool) []byte {
	if offset <<= 3; more {
		offset |= 1
	}
	return []byte{next, 0, byte(offset >> 8), byte(offset), 0, 0, 0, 1}
}

const (
	tcp, udp4, icmp6 = 6, 17, 58
	eui              = "fe80::5eff:fe10:1"
)

var (
	fixed  = Rules{MAC: mac.Of(own), IPs: []netip.Addr{ip("192.0.2.10"), ip("192.0.2.11"), ip("2001:db8::10")}}
	anyone = Rules{MAC: mac.Of(own), Any: true}
	asking = Rules{MAC: mac.Of(own), DHCP: true}
	leased = Rules{MAC: mac.Of(own), DHCP: true, IPs: []netip.Addr{ip("192.0.2.50")}}
)

// TestProgram runs the programs on packets in the kernel, without a link.
func TestProgram(t *testing.T) {
	port := make([]byte, 20)
	for _, c := range []struct {
		what   string
		rules  Rules
		packet []byte
		pass   bool
	}{
		{"own IPv4", fixed, v4("192.0.2.10", tcp, 0, port), true},
		{"own second IPv4", fixed, v4("192.0.2.11", tcp, 0, port), true},
		{"another's IPv4", fixed, v4("192.0.2.12", tcp, 0, port), false},
		{"no IPv4", fixed, v4("0.0.0.0", tcp, 0, port), false},
		{"another's MAC", fixed, frame(other, 0x800, v4("192.0.2.10", tcp, 0, port)[14:]), false},
		{"another's MAC, any address", anyone, frame(other, 0x800, v4("192.0.2.10", tcp, 0, port)[14:]), false},
		{"any IPv4", anyone, v4("198.51.100.9", tcp, 0, port), true},
		{"before a lease", asking, v4("198.51.100.9", tcp, 0, port), false},
		{"the leased address", leased, v4("192.0.2.50", tcp, 0, port), true},
		{"another than the leased", leased, v4("192.0.2.51", tcp, 0, port), false},
		{"IPv6 in a frame of IPv4", anyone, frame(own, 0x800, v6(eui, tcp, port)[14:]), false},
		{"a frame of another type", anyone, frame(own, 0x88cc, make([]byte, 60)), false},
		{"a tag in the frame", anyone, frame(own, 0x8100, []byte{0, 5, 8, 0}, make([]byte, 60)), false},

		{"asks by DHCP", fixed, v4("0.0.0.0", udp4, 0, udp(68, 67), bootp(own)), true},
		{"renews", leased, v4("192.0.2.50", udp4, 0, udp(68, 67), bootp(own)), true},
		{"asks by DHCP for another", anyone, v4("0.0.0.0", udp4, 0, udp(68, 67), bootp(other)), false},
		{"gives back another's lease", leased, v4("192.0.2.50", udp4, 0, udp(1068, 67), bootp(other)), false},
		{"asks by DHCP from a wrong port", fixed, v4("0.0.0.0", udp4, 0, udp(1068, 67), bootp(own)), false},
		{"offers by DHCP", fixed, v4("192.0.2.10", udp4, 0, udp(67, 68), bootp(other)), false},
		{"offers by DHCP, any address", anyone, v4("192.0.2.10", udp4, 0, udp(67, 68), bootp(other)), false},
		{"offers by DHCP behind options", anyone, v4options("192.0.2.10", udp4, 0, make([]byte, 40), udp(67, 68), bootp(other)), false},
		{"offers by DHCP in parts", fixed, v4("192.0.2.10", udp4, 0x2000, udp(67, 68)), false},
		{"a part without ports", fixed, v4("192.0.2.10", udp4, 0x2000, []byte{0}), false},
		{"a later part", fixed, v4("192.0.2.10", udp4, 5, port), true},
		{"another's later part", fixed, v4("192.0.2.12", udp4, 5, port), false},
		{"UDP", fixed, v4("192.0.2.10", udp4, 0, udp(1000, 68), port), true},
		{"UDP behind options", fixed, v4options("192.0.2.10", udp4, 0, make([]byte, 8), udp(1000, 68), port), true},
		{"a header that is too short", anyone, append(frame(own, 0x800, []byte{0x44}), v4("192.0.2.10", tcp, 0, port)[15:]...), false},

		{"own ARP", fixed, arp(own, 1, "192.0.2.10", "192.0.2.12"), true},
		{"ARP answer", fixed, arp(own, 2, "192.0.2.11", "192.0.2.12"), true},
		{"ARP for another", fixed, arp(own, 2, "192.0.2.12", "192.0.2.1"), false},
		{"ARP with another's MAC", fixed, arp(other, 2, "192.0.2.10", "192.0.2.1"), false},
		{"ARP with another's MAC, any address", anyone, arp(other, 2, "192.0.2.10", "192.0.2.1"), false},
		{"ARP, any address", anyone, arp(own, 2, "192.0.2.12", "192.0.2.1"), true},
		{"probe", fixed, arp(own, 1, "0.0.0.0", "192.0.2.10"), true},
		{"probe for another's", fixed, arp(own, 1, "0.0.0.0", "192.0.2.12"), false},
		{"probe of an offer", asking, arp(own, 1, "0.0.0.0", "192.0.2.12"), true},
		{"ARP of something else", fixed, frame(own, 0x806, []byte{0, 1, 8, 0, 6, 5}, make([]byte, 30)), false},

		{"own IPv6", fixed, v6("2001:db8::10", tcp, port), true},
		{"another's IPv6", fixed, v6("2001:db8::11", tcp, port), false},
		{"link-local", fixed, v6(eui, tcp, port), true},
		{"by a router's prefix", fixed, v6("2001:db8:5::5eff:fe10:1", tcp, port), true},
		{"another's link-local", fixed, v6("fe80::5eff:fe10:2", tcp, port), false},
		{"from a multicast address", fixed, v6("ff02::5eff:fe10:1", tcp, port), false},
		{"from no IPv6", fixed, v6("::", tcp, port), false},
		{"from no IPv6, any address", anyone, v6("::", tcp, port), false},
		{"any IPv6", anyone, v6("2001:db8::99", tcp, port), true},
		{"DHCPv6 offer", anyone, v6(eui, udp4, udp(547, 546)), false},
		{"DHCPv6 offer behind a header", anyone, v6(eui, 60, header(udp4, 2), udp(547, 546)), false},
		{"DHCPv6 request", fixed, v6(eui, udp4, udp(546, 547)), true},
		{"UDP in IPv6", fixed, v6("2001:db8::10", udp4, udp(1000, 1000)), true},

		{"echo", fixed, v6("2001:db8::10", icmp6, nd(128, "")), true},
		{"router advertisement", anyone, v6(eui, icmp6, nd(134, "", make([]byte, 8))), false},
		{"redirect", anyone, v6(eui, icmp6, nd(137, "fe80::1", make([]byte, 16))), false},
		{"router advertisement behind headers", anyone, v6(eui, 0, header(43, 1), header(60, 3), header(icmp6, 1), nd(134, "", make([]byte, 8))), false},
		{"router advertisement in parts", anyone, v6(eui, 44, fragment(icmp6, 0, true), nd(134, "")), false},
		{"router advertisement behind parts and headers", anyone, v6(eui, 44, fragment(60, 0, true), header(icmp6, 1), nd(134, "")), false},
		{"a first part that ends too early", anyone, v6(eui, 44, fragment(60, 0, true), []byte{icmp6}), false},
		{"too many headers", anyone, v6(eui, 0, header(60, 1), header(60, 1), header(60, 1), header(60, 1), header(icmp6, 1), nd(134, "")), false},
		{"a later part in IPv6", fixed, v6("2001:db8::10", 44, fragment(udp4, 100, false), port), true},
		{"another's later part in IPv6", fixed, v6("2001:db8::11", 44, fragment(udp4, 100, false), port), false},
		{"a later part from no IPv6", anyone, v6("::", 44, fragment(icmp6, 100, false), port), false},
		{"router advertisement behind authentication", anyone, v6(eui, 51, append([]byte{icmp6, 4}, make([]byte, 22)...), nd(134, "")), false},

		{"asks for routers", fixed, v6(eui, icmp6, nd(133, "", option(1, own))), true},
		{"asks for routers from nowhere", fixed, v6("::", icmp6, nd(133, "")), true},
		{"asks for routers with another's MAC", fixed, v6(eui, icmp6, nd(133, "", option(1, other))), false},
		{"asks for a neighbour", fixed, v6("2001:db8::10", icmp6, nd(135, "2001:db8::11", option(1, own))), true},
		{"asks with another's MAC", fixed, v6("2001:db8::10", icmp6, nd(135, "2001:db8::11", option(1, other))), false},
		{"asks with two options", fixed, v6("2001:db8::10", icmp6, nd(135, "2001:db8::11", option(14, own), option(1, other))), false},
		{"asks with a long option", fixed, v6("2001:db8::10", icmp6, nd(135, "2001:db8::11", []byte{14, 2}, make([]byte, 14))), false},
		{"asks in another's name", fixed, v6("2001:db8::11", icmp6, nd(135, "2001:db8::10", option(1, own))), false},
		{"looks for its like", fixed, v6("::", icmp6, nd(135, "2001:db8::10", option(14, own))), true},
		{"looks for its link-local like", fixed, v6("::", icmp6, nd(135, eui)), true},
		{"looks for another's like", fixed, v6("::", icmp6, nd(135, "2001:db8::11")), false},
		{"advertises", fixed, v6("2001:db8::10", icmp6, nd(136, "2001:db8::10", option(2, own))), true},
		{"advertises link-local", fixed, v6(eui, icmp6, nd(136, eui, option(2, own))), true},
		{"advertises another's", fixed, v6("2001:db8::10", icmp6, nd(136, "2001:db8::11", option(2, own))), false},
		{"advertises another's MAC", fixed, v6("2001:db8::10", icmp6, nd(136, "2001:db8::10", option(2, other))), false},
		{"advertises another's MAC, any address", anyone, v6(eui, icmp6, nd(136, "2001:db8::11", option(2, other))), false},
		{"advertises any", anyone, v6("2001:db8::9", icmp6, nd(136, "2001:db8::9", option(2, own))), true},
		{"advertises from nowhere", anyone, v6("::", icmp6, nd(136, "2001:db8::9", option(2, own))), false},
		{"reports groups", fixed, v6("::", 0, header(icmp6, 1), nd(143, "ff02::1")), true},
		{"reports groups behind a false source", fixed, v6("2001:db8::11", 0, header(icmp6, 1), nd(143, "ff02::1")), false},
	} {
		t.Run(c.what, func(t *testing.T) {
			prog := load(t, c.rules)
			if got := verdict(t, prog, c.packet); got != c.pass {
				t.Errorf("passed: %v, want %v", got, c.pass)
			}
		})
	}
}

// TestProgramOfManyAddresses checks that the kernel accepts the long program of a long list.
func TestProgramOfManyAddresses(t *testing.T) {
	r := Rules{MAC: mac.Of(own)}
	for i := range 200 {
		r.IPs = append(r.IPs, netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), netip.MustParseAddr("2001:db8::1:0").Next())
	}
	prog := load(t, r)
	for from, want := range map[string]bool{"192.0.2.0": true, "192.0.2.199": true, "192.0.2.200": false} {
		if got := verdict(t, prog, v4(from, tcp, 0, make([]byte, 20))); got != want {
			t.Errorf("%s: passed %v, want %v", from, got, want)
		}
	}
}

// TestNothingForgedPasses checks that every packet that passes has the own MAC, a known type, and no foreign source
// address.
func TestNothingForgedPasses(t *testing.T) {
	prog := load(t, fixed)
	seed := []byte("berth")
	for i := range 3000 {
		p := [][]byte{
			v4("192.0.2.10", udp4, 0, udp(68, 67), bootp(own)), v6("2001:db8::10", icmp6, nd(136, "2001:db8::10", option(2, own))),
			arp(own, 2, "192.0.2.10", "192.0.2.1"), v6(eui, 0, header(icmp6, 1), nd(143, "ff02::1")),
		}[i%4]
		p = bytes.Clone(p)
		for j := range 1 + i%3 {
			seed = append(seed[1:], seed[0]*31+byte(i>>3)+byte(j))
			p[(int(seed[0])<<8|int(seed[1]))%len(p)] ^= seed[2] | 1
		}
		if !verdict(t, prog, p) {
			continue
		}
		if !bytes.Equal(p[6:12], own) {
			t.Fatalf("passed from MAC %x", p[6:12])
		}
		switch binary.BigEndian.Uint16(p[12:]) {
		case 0x800:
			if src := netip.AddrFrom4([4]byte(p[26:30])); !slices.Contains(fixed.IPs, src) && !src.IsUnspecified() {
				t.Fatalf("passed from %s", src)
			}
		case 0x86dd:
			src := netip.AddrFrom16([16]byte(p[22:38]))
			if !slices.Contains(fixed.IPs, src) && [8]byte(p[30:38]) != fixed.MAC.EUI64() {
				t.Fatalf("passed from %s", src)
			}
		case 0x806:
			if src := netip.AddrFrom4([4]byte(p[28:32])); !bytes.Equal(p[22:28], own) || !slices.Contains(fixed.IPs, src) && !src.IsUnspecified() {
				t.Fatalf("passed ARP of %x, %s", p[22:28], src)
			}
		default:
			t.Fatalf("passed a frame of type %x", p[12:14])
		}
	}
}

func load(t *testing.T, r Rules) *os.File {
	t.Helper()
	testkit.NeedsRoot(t)
	prog, err := r.load()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { prog.Close() })
	return prog
}

// runOn has the kernel run a loaded program on a packet and returns the program's result.
func runOn(prog *os.File, packet []byte) (int32, error) {
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&packet[0])
	attr := struct {
		fd, result, size, outSize uint32
		in, out                   uint64
		repeat, took              uint32
		ctxIn, ctxOut             uint32
		ctx, ctxTo                uint64
		flags, cpu, batch, pad    uint32
	}{fd: uint32(prog.Fd()), size: uint32(len(packet)), in: uint64(uintptr(unsafe.Pointer(&packet[0])))}
	if _, err := bpf.Call(unix.BPF_PROG_TEST_RUN, &attr); err != nil {
		return 0, fmt.Errorf("run program %s on %d bytes: %w", prog.Name(), len(packet), err)
	}
	return int32(attr.result), nil
}

func verdict(t *testing.T, prog *os.File, packet []byte) bool {
	t.Helper()
	got, err := runOn(prog, packet)
	if err != nil {
		t.Fatal(err)
	}
	if got != goOn && got != shot {
		t.Fatalf("the program returned %d", got)
	}
	return got == goOn
}

func BenchmarkLoad(b *testing.B) {
	testkit.NeedsRoot(b)
	for b.Loop() {
		prog, err := fixed.load()
		if err != nil {
			b.Fatal(err)
		}
		prog.Close()
	}
}
