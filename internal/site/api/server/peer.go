package server

import (
	"context"
	"net"
	"net/http"
	"os/user"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/site/certs"
	"berth/internal/spec/roles"
	"berth/internal/sys/refuse"
)

// peer is the context key of the caller on a unix socket.
type peer struct{}

// Peer stores the caller in the context of each connection of a unix socket: it is an http.Server.ConnContext.
func Peer(ctx context.Context, c net.Conn) context.Context {
	if l, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = l.NetConn()
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return ctx
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return ctx
	}
	var cred *unix.Ucred
	if raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }) != nil || err != nil {
		return ctx
	}
	return context.WithValue(ctx, peer{}, roles.Who{Name: userName(cred.Uid), Role: roles.Admin, Via: roles.ViaUnix})
}

// userName is the name of a user of this host, or uid- and a number.
func userName(uid uint32) string {
	if u, err := user.LookupId(strconv.Itoa(int(uid))); err == nil {
		return u.Username
	}
	return "uid-" + strconv.Itoa(int(uid))
}

// Identify returns the caller of a request: the owner of the certificate, or an admin if it came over the unix socket: a user who can
// reach that is root of this host.
func Identify(r *http.Request) (roles.Who, error) {
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		leaf := r.TLS.PeerCertificates[0]
		if time.Now().After(leaf.NotAfter) { // the connection began before, and will be closed
			return roles.Who{}, refuse.Cannotf("an admin issues a new one: berth certs issue", "the certificate of %.80q ended at %s", leaf.Subject.CommonName, leaf.NotAfter.Local().Format(time.DateTime))
		}
		return certs.Identity(leaf)
	}
	if w, ok := r.Context().Value(peer{}).(roles.Who); ok {
		return w, nil
	}
	return roles.Who{}, refuse.Cannotf("berth certs issue makes a certificate", "nobody knows who asks")
}
