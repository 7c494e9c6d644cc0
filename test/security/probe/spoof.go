package main

import (
	"net"

	"golang.org/x/sys/unix"
)

// spoof tries to send from addresses that the node does not have. a holds a foreign IPv4 and IPv6 address, and a neighbour's IPv4
// and IPv6 address. Each datagram carries the name of the attempt.
func spoof(a []string) map[string]string {
	other4, other6, to4, to6 := net.ParseIP(a[0]), net.ParseIP(a[1]), net.ParseIP(a[2]), net.ParseIP(a[3])
	all := map[string]string{}
	for _, t := range []struct {
		name     string
		kind     int
		protocol int
		level    int // option that is set to 1
		option   int
		from, to unix.Sockaddr
		text     string // sent; "" for the name
	}{
		{name: "own-4", from: at4(nil, 0), to: at4(to4, 999)},
		{name: "own-6", from: at6(nil, 0), to: at6(to6, 999)},
		{name: "freebind-4", level: unix.SOL_IP, option: unix.IP_FREEBIND, from: at4(other4, 0), to: at4(to4, 999)},
		{name: "freebind-6", level: unix.SOL_IPV6, option: unix.IPV6_FREEBIND, from: at6(other6, 0), to: at6(to6, 999)},
		{name: "freebind-6-all", level: unix.SOL_IPV6, option: unix.IPV6_FREEBIND, from: at6(other6, 0), to: at6(net.ParseIP("ff02::1"), 999)},
		{name: "echo-6", kind: unix.SOCK_DGRAM, protocol: unix.IPPROTO_ICMPV6, level: unix.SOL_IPV6, option: unix.IPV6_FREEBIND, from: at6(other6, 0), to: at6(to6, 0), text: "\x80\x00\x00\x00\x00\x00\x00\x00echo-6"},
		{name: "transparent-4", level: unix.SOL_IP, option: unix.IP_TRANSPARENT, from: at4(other4, 0), to: at4(to4, 999)},
		{name: "transparent-6", level: unix.SOL_IPV6, option: unix.IPV6_TRANSPARENT, from: at6(other6, 0), to: at6(to6, 999)},
		{name: "hopopts-6", level: unix.SOL_IPV6, option: unix.IPV6_HOPOPTS, from: at6(nil, 0), to: at6(to6, 999)},
		{name: "dstopts-6", level: unix.SOL_IPV6, option: unix.IPV6_DSTOPTS, from: at6(nil, 0), to: at6(to6, 999)},
		{name: "dhcp-offer", level: unix.SOL_SOCKET, option: unix.SO_BROADCAST, from: at4(nil, 67), to: at4(net.IPv4bcast, 68)},
		{name: "dhcp-offer-to-one", level: unix.SOL_SOCKET, option: unix.SO_BROADCAST, from: at4(nil, 67), to: at4(to4, 68)},
		{name: "dhcp-request", level: unix.SOL_SOCKET, option: unix.SO_BROADCAST, from: at4(nil, 68), to: at4(net.IPv4bcast, 67), text: request()},
		{name: "dhcp6-offer", level: unix.SOL_SOCKET, option: unix.SO_BROADCAST, from: at6(nil, 547), to: at6(net.ParseIP("ff02::1"), 546)},
		{name: "advertise-router", protocol: unix.IPPROTO_ICMPV6, level: unix.SOL_SOCKET, option: unix.SO_BROADCAST, from: at6(nil, 0), to: at6(net.ParseIP("ff02::1"), 0), text: "\x86\x00\x00\x00\x40\x00\x07\x08advertise-router"},
		{name: "advertise-neighbour", protocol: unix.IPPROTO_ICMPV6, level: unix.SOL_SOCKET, option: unix.SO_BROADCAST, from: at6(nil, 0), to: at6(to6, 0), text: "\x88\x00\x00\x00\x20\x00\x00\x00" + string(other6)},
		{name: "redirect", protocol: unix.IPPROTO_ICMPV6, level: unix.SOL_SOCKET, option: unix.SO_BROADCAST, from: at6(nil, 0), to: at6(to6, 0), text: "\x89\x00\x00\x00\x00\x00\x00\x00" + string(other6)},
	} {
		text := t.text
		if text == "" {
			text = t.name
		}
		family := unix.AF_INET
		if _, is6 := t.to.(*unix.SockaddrInet6); is6 {
			family = unix.AF_INET6
		}
		all[t.name] = name(say(family, t.protocol, t.level, t.option, t.from, t.to, text))
	}
	return all
}

func say(family, protocol, level, option int, from, to unix.Sockaddr, text string) error {
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if option == unix.IPV6_HOPOPTS || option == unix.IPV6_DSTOPTS {
		err = unix.SetsockoptString(fd, level, option, "\x00\x00\x01\x04\x00\x00\x00\x00")
	} else if option != 0 {
		err = unix.SetsockoptInt(fd, level, option, 1)
	}
	if err == nil {
		err = unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, "eth0")
	}
	if err == nil {
		err = unix.Bind(fd, from)
	}
	if err == nil {
		err = unix.Sendto(fd, []byte(text), 0, to)
	}
	return err
}

// request returns a DHCP request with another MAC.
func request() string {
	b := make([]byte, 240)
	copy(b, []byte{1, 1, 6})
	copy(b[28:], []byte{2, 0, 0x5e, 0x10, 0, 9})
	return string(b) + "dhcp-request"
}

func at4(ip net.IP, port int) unix.Sockaddr {
	a := &unix.SockaddrInet4{Port: port}
	copy(a.Addr[:], ip.To4())
	return a
}

func at6(ip net.IP, port int) unix.Sockaddr {
	a := &unix.SockaddrInet6{Port: port}
	copy(a.Addr[:], ip.To16())
	if i, err := net.InterfaceByName("eth0"); err == nil && (ip == nil || ip.IsLinkLocalMulticast()) {
		a.ZoneId = uint32(i.Index)
	}
	return a
}
