package gateway

import (
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"

	"berth/internal/sys/refuse"
)

// exchanged is a server's reply to a call of EXCHANGE_ID, without the mark of its record.
func exchanged(call uint32, scope string) []byte {
	be := binary.BigEndian
	opaque := func(b []byte, text string) []byte {
		return append(be.AppendUint32(b, uint32(len(text))), text+strings.Repeat("\x00", -len(text)&3)...)
	}
	var b []byte
	for _, w := range []uint32{call, 1, 0, 0, 0, 0, 0, 0, 1, 42, 0, 7, 7, 1, 0x20000, 0, 0, 0} {
		b = be.AppendUint32(b, w)
	}
	return append(opaque(opaque(b, "owner"), scope), 0, 0, 0, 0)
}

// TestVersion: a server that calls itself NFS-Ganesha is used by NFS 4.1, others as the spec says; what is no server of NFS 4.1 is left to the kernel.
func TestVersion(t *testing.T) {
	for name, c := range map[string]struct {
		scope, options string
		asked, silent  bool
		want           string
	}{
		"the kernel's server":       {scope: "files.example.org", options: "hard,vers=4.2", want: "hard,vers=4.2"},
		"NFS-Ganesha":               {scope: "files_NFS-Ganesha", options: "hard,vers=4.2", want: "hard,vers=4.1"},
		"NFS-Ganesha 4.3":           {scope: "files_NFS-Ganesha\x00", options: "hard,vers=4.2", want: "hard,vers=4.1"},
		"NFS-Ganesha, asked by 4.2": {scope: "files_NFS-Ganesha", options: "hard,vers=4.2", asked: true},
		"NFS-Ganesha, asked by 4.1": {scope: "files_NFS-Ganesha", options: "hard,vers=4.1", asked: true, want: "hard,vers=4.1"},
		"another program":           {silent: true, options: "hard,vers=4.2", want: "hard,vers=4.2"},
	} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			head := make([]byte, 8) // the record's mark and the number of the call
			if _, err := io.ReadFull(conn, head); err != nil || c.silent {
				return
			}
			_, _ = io.CopyN(io.Discard, conn, int64(binary.BigEndian.Uint32(head)&^(1<<31))-4)
			reply := exchanged(binary.BigEndian.Uint32(head[4:]), c.scope)
			_, _ = conn.Write(append(binary.BigEndian.AppendUint32(nil, 1<<31|uint32(len(reply))), reply...))
		}()
		n := nfsMount{
			Source: "files:/export", Options: c.options, Older: !c.asked,
			Server: netip.MustParseAddr("127.0.0.1"), Port: listener.Addr().(*net.TCPAddr).Port,
		}
		server, err := n.reach(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got, err := n.version(server)
		if got != c.want || (refuse.KindOf(err) == refuse.Cannot) != (c.want == "") {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		server.Close()
		listener.Close()
	}
}

// FuzzServerScope: whatever a server answers is read within its bounds, and each cut of a reply names no scope.
func FuzzServerScope(f *testing.F) {
	whole := exchanged(7, "files_NFS-Ganesha")
	f.Add(whole)
	f.Add(exchanged(8, "files"))
	if got := serverScope(whole, 7); got != "files_NFS-Ganesha" {
		f.Errorf("the scope of a whole reply: %q", got)
	}
	for i := range len(whole) - 4 {
		if got := serverScope(whole[:i], 7); got != "" {
			f.Errorf("the scope of a reply of %d bytes: %q", i, got)
		}
	}
	f.Fuzz(func(t *testing.T, reply []byte) {
		if got := serverScope(reply, 7); len(got) > len(reply) {
			t.Errorf("%q", got)
		}
	})
}
