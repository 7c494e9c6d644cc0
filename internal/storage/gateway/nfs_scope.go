package gateway

import (
	"bytes"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"berth/internal/sys/refuse"
)

// ganesha ends the scope of each NFS-Ganesha: it is the server's host name or its Server_Scope, with this after it
// (nfsv4_init_params in its main/nfs_init.c).
const ganesha = "_NFS-Ganesha"

// version returns the options with the version for this server. NFS-Ganesha before 6.2 answers READ_PLUS, by which clients of 4.2 ask, as a
// draft had it: to Linux 6.6 and later, files smaller than a page read as zeros (its issue 1188). Which version it has is not known from
// outside, so by 4.2 it is never asked.
func (n *nfsMount) version(server *os.File) (string, error) {
	const newest, older = "vers=4.2", "vers=4.1"
	if !strings.Contains(n.Options, newest) || !isGanesha(server) {
		return n.Options, nil
	}
	if !n.Older {
		return "", refuse.Cannotf(`leave out options: {vers: …}, or write vers: "4.1"`,
			"mount %s (%s) by NFS 4.2: NFS-Ganesha before 6.2 gives zeros in place of what small files hold, and does not tell its version", n.Source, n.Server)
	}
	return strings.Replace(n.Options, newest, older, 1), nil
}

// isGanesha asks the file server at the other end of a connection who it is; a server that does not answer as one of NFS 4.1 is another.
func isGanesha(conn *os.File) bool {
	if err := conn.SetDeadline(time.Now().Add(connectWait)); err != nil {
		return false
	}
	id := rand.Uint64()
	if _, err := conn.Write(exchangeID(uint32(id), id)); err != nil {
		return false
	}
	var mark uint32 // of a record (RFC 5531, section 11): its last fragment has the first bit
	if err := binary.Read(conn, binary.BigEndian, &mark); err != nil || mark>>31 == 0 || mark&^(1<<31) > 64<<10 {
		return false
	}
	reply := make([]byte, mark&^(1<<31))
	if _, err := io.ReadFull(conn, reply); err != nil {
		return false
	}
	return strings.HasSuffix(strings.TrimRight(serverScope(reply, uint32(id)), "\x00"), ganesha) // it counts the end of its C string in
}

// exchangeID is a call of EXCHANGE_ID (RFC 8881, section 18.35), which asks for nothing but the server's name: the server forgets a client that
// makes no session after that. call tells the reply from others, client the client from all others.
func exchangeID(call uint32, client uint64) []byte {
	var b bytes.Buffer
	put := func(words ...any) {
		for _, w := range words {
			switch w := w.(type) {
			case int:
				_ = binary.Write(&b, binary.BigEndian, uint32(w))
			case string: // opaque, padded to words
				_ = binary.Write(&b, binary.BigEndian, uint32(len(w)))
				b.WriteString(w + strings.Repeat("\x00", -len(w)&3))
			default:
				_ = binary.Write(&b, binary.BigEndian, w)
			}
		}
	}
	const nobody = 65534
	put(call, 0, 2, 100003, 4, 1)                // a call of RPC 2: COMPOUND of NFS 4
	put(1, 5*4+8, 0, "berth", nobody, nobody, 0) // who asks (AUTH_SYS): stamp, host, user, group, no groups
	put(0, 0)                                    // no verifier
	put("", 1, 1, 42)                            // no tag, NFS 4.1, one operation: EXCHANGE_ID
	put(client, "berth asks who serves "+string(binary.BigEndian.AppendUint64(nil, client)))
	put(0, 0, 0) // no flags, SP4_NONE, no name of the implementation
	return append(binary.BigEndian.AppendUint32(nil, 1<<31|uint32(b.Len())), b.Bytes()...)
}

// serverScope reads the server's scope from a reply; "" if it is none to this call, or an error.
func serverScope(reply []byte, call uint32) string {
	ok := true
	take := func(n uint32) (part []byte) {
		if ok = ok && uint64(n) <= uint64(len(reply)); ok {
			part, reply = reply[:n], reply[n:]
		}
		return part
	}
	word := func() uint32 {
		if four := take(4); ok {
			return binary.BigEndian.Uint32(four)
		}
		return 0
	}
	opaque := func() string {
		text := take(word())
		take(uint32(-len(text) & 3))
		return string(text)
	}
	expect := func(words ...uint32) {
		for _, w := range words {
			ok = word() == w && ok
		}
	}
	expect(call, 1, 0) // a reply, accepted
	word()             // the verifier
	opaque()
	expect(0, 0) // success of the call and of the compound
	opaque()     // its tag
	expect(1, 42, 0)
	take(8 + 4 + 4) // the client's id, its sequence, flags
	expect(0)       // SP4_NONE
	take(8)         // the server's minor and major owner
	opaque()
	if scope := opaque(); ok {
		return scope
	}
	return ""
}
