package dhcp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

const (
	serverPort = 67
	clientPort = 68

	etherLen = 14
	ipLen    = 20
	udpLen   = 8
)

// listen opens a packet socket on an interface. The socket receives packets to a DHCP client and nothing else.
func listen(index int) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0) // 0: receives nothing until bound
	if err != nil {
		return nil, fmt.Errorf("open packet socket: %w", err)
	}
	f := os.NewFile(uintptr(fd), "DHCP client")
	filter := toClients()
	err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
	if err == nil {
		ip := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_IP))
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: ip, Ifindex: index})
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("bind packet socket: %w", err)
	}
	return f, nil
}

// toClients passes UDP packets to the client port, except fragments after the first.
func toClients() []unix.SockFilter {
	const load, jump, set = unix.BPF_LD | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
	return []unix.SockFilter{
		{Code: load | unix.BPF_B, K: etherLen + 9},
		{Code: jump, Jf: 6, K: unix.IPPROTO_UDP},
		{Code: load | unix.BPF_H, K: etherLen + 6},
		{Code: set, Jt: 4, K: 0x1fff},
		{Code: unix.BPF_LDX | unix.BPF_B | unix.BPF_MSH, K: etherLen},
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_IND, K: etherLen + 2},
		{Code: jump, Jf: 1, K: clientPort},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0xffff},
		{Code: unix.BPF_RET | unix.BPF_K},
	}
}

// frame returns the Ethernet frame that carries a message to servers.
func frame(mac net.HardwareAddr, w way, body []byte) []byte {
	f := append(bytes.Clone(w.mac), mac...)
	f = append(f, 8, 0)
	from, to := w.from.As4(), w.to.As4()
	total := uint16(ipLen + udpLen + len(body))
	ip := binary.BigEndian.AppendUint16([]byte{0x45, 0}, total)
	ip = append(ip, 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0)
	ip = append(append(ip, from[:]...), to[:]...)
	binary.BigEndian.PutUint16(ip[10:], checksum(ip))
	udp := binary.BigEndian.AppendUint16([]byte{0, clientPort, 0, serverPort}, total-ipLen)
	udp = append(append(udp, 0, 0), body...)
	pseudo := append(append(from[:], to[:]...), 0, unix.IPPROTO_UDP)
	sum := checksum(append(append(pseudo, udp[4:6]...), udp...))
	if sum == 0 {
		sum = 0xffff // 0 would mean no checksum (RFC 768)
	}
	binary.BigEndian.PutUint16(udp[6:], sum)
	return append(append(f, ip...), udp...)
}

// parse returns the MAC that sent a frame to a DHCP client, and the message in it. It does not check the UDP checksum,
// which is not filled in between the two ends of a veth.
func parse(f []byte) (from net.HardwareAddr, body []byte, ok bool) {
	if len(f) < etherLen+ipLen || binary.BigEndian.Uint16(f[12:]) != unix.ETH_P_IP {
		return nil, nil, false
	}
	ip := f[etherLen:]
	head, total := int(ip[0]&0xf)*4, int(binary.BigEndian.Uint16(ip[2:]))
	fragment := binary.BigEndian.Uint16(ip[6:])&0x3fff != 0 // more fragments follow, or this is not the first
	if ip[0]>>4 != 4 || head < ipLen || total < head+udpLen || total > len(ip) || fragment || ip[9] != unix.IPPROTO_UDP {
		return nil, nil, false
	}
	udp := ip[head:total]
	size := int(binary.BigEndian.Uint16(udp[4:]))
	if binary.BigEndian.Uint16(udp[2:]) != clientPort || size < udpLen || size > len(udp) {
		return nil, nil, false
	}
	return net.HardwareAddr(bytes.Clone(f[6:12])), udp[udpLen:size], true
}

// checksum returns the Internet checksum (RFC 1071).
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(b[i]) << 8
		if i+1 < len(b) {
			sum += uint32(b[i+1])
		}
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
