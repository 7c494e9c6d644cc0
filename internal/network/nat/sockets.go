package nat

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"berth/internal/sys/file"
)

// socket is a socket of the host that takes what arrives at a port.
type socket struct {
	proto   string
	address netip.Addr
	port    uint16
	inode   string
}

// sockets lists the sockets of the calling thread's network namespace that listen (TCP) or are not connected (UDP).
func sockets() (all []socket, err error) {
	const listening, unconnected = "0A", "07"
	for _, t := range []struct{ proto, name, state string }{
		{"tcp", "tcp", listening}, {"tcp", "tcp6", listening}, {"udp", "udp", unconnected}, {"udp", "udp6", unconnected},
	} {
		text, err := os.ReadFile("/proc/thread-self/net/" + t.name)
		if errors.Is(err, fs.ErrNotExist) { // no IPv6
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list the host's sockets: %w", err)
		}
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			if len(f) < 10 || f[3] != t.state {
				continue
			}
			s := socket{proto: t.proto, inode: f[9]}
			var ok bool
			if s.address, s.port, ok = parseSocket(f[1]); ok {
				all = append(all, s)
			}
		}
	}
	return all, nil
}

// parseSocket reads 0100007F:1F90: words of the address in the byte order of this machine, which is little-endian on all
// machines that Berth runs on, and the port.
func parseSocket(s string) (a netip.Addr, port uint16, ok bool) {
	addr, p, _ := strings.Cut(s, ":")
	b, err := hex.DecodeString(addr)
	if err != nil {
		return a, 0, false
	}
	for word := range slices.Chunk(b, 4) {
		slices.Reverse(word)
	}
	n, err := strconv.ParseUint(p, 16, 16)
	if err != nil {
		return a, 0, false
	}
	a, ok = netip.AddrFromSlice(b)
	return a.Unmap(), uint16(n), ok
}

// who names the process that has the socket: "nginx (pid 815)".
func (s socket) who() string {
	at := netip.AddrPortFrom(s.address, s.port).String()
	dirs, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, fd := range dirs {
		if to, err := os.Readlink(fd); err == nil && to == "socket:["+s.inode+"]" {
			dir := filepath.Dir(filepath.Dir(fd))
			return fmt.Sprintf("%s (pid %s), which has %s", file.Text(dir+"/comm"), filepath.Base(dir), at)
		}
	}
	return "a socket of the host, " + at
}
