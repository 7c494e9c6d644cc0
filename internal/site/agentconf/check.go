package agentconf

import (
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"regexp"
	"strconv"

	"berth/internal/site/iosync/want"
	"berth/internal/spec/vnode"
)

// name matches the names that hosts and sites may have: DNS names, because they are parts of certificates and of keys of the
// store.
var name = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)

func isName(s string) bool { return len(s) <= 253 && name.MatchString(s) }

// check returns the mistakes of a file that could be read.
func check(c *Config) (all []vnode.Problem) {
	bad := func(field, format string, a ...any) {
		all = append(all, vnode.Problem{Field: field, Msg: fmt.Sprintf(format, a...)})
	}
	for field, s := range map[string]string{"host": c.Host, "site": c.Site} {
		if s != "" && !isName(s) {
			bad(field, "%q is no name: lower-case letters, digits, - and dots, as in DNS", s)
		}
	}
	if c.Local && len(c.Listen) > 0 {
		bad("listen", "with local: true the agent listens nowhere: leave one of them out")
	}
	for i, s := range c.Listen {
		checkAddress(bad, fmt.Sprintf("listen[%d]", i), s)
	}
	if c.Address != "" && checkAddress(bad, "address", c.Address) && c.Address[0] == ':' {
		bad("address", "%q names no host: other hosts reach this agent there", c.Address)
	}
	if c.Metrics != "" {
		checkAddress(bad, "metrics", c.Metrics)
	}
	files := map[string]string{"socket": c.Socket, "certs": c.Certs, "store.ca": c.Store.CA, "store.cert": c.Store.Cert, "store.key": c.Store.Key, "store.password_file": c.Store.Password}
	if e := c.Store.Embedded; e != nil {
		files["store.embedded.dir"] = e.Dir
		if e.Listen != "" {
			checkAddress(bad, "store.embedded.listen", e.Listen)
		}
		if len(c.Store.Endpoints) > 0 {
			bad("store.embedded", "with endpoints the store is elsewhere: leave one of them out")
		}
	}
	for field, path := range files {
		if path != "" && (!filepath.IsAbs(path) || filepath.Clean(path) != path) {
			bad(field, "%q is no path from the root of the file system", path)
		}
	}
	if len(c.Socket) > 100 { // sun_path
		bad("socket", "%d bytes: the kernel takes 100 for a socket's path", len(c.Socket))
	}
	checkStore(bad, c.Store)
	want.Check(c.Filesystems, bad)
	if c.Slots < 0 {
		bad("slots", "%d: from 1 to 100000", c.Slots)
	}
	return all
}

func checkStore(bad func(field, format string, a ...any), s Store) {
	for i, e := range s.Endpoints {
		u, err := url.Parse(e)
		if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Port() == "" || u.Hostname() == "" || u.Path != "" || u.User != nil || u.RawQuery != "" {
			bad(fmt.Sprintf("store.endpoints[%d]", i), "%q is no endpoint: https://ADDRESS:PORT", e)
			continue
		}
		if ip := net.ParseIP(u.Hostname()); u.Scheme == "http" && (ip == nil || !ip.IsLoopback()) {
			bad(fmt.Sprintf("store.endpoints[%d]", i), "%q is not encrypted: http is for an address of the loopback, as 127.0.0.1", e)
		}
	}
	if (s.Cert == "") != (s.Key == "") {
		bad("store.cert", "cert and key belong together")
	}
	if (s.User == "") != (s.Password == "") {
		bad("store.user", "user and password_file belong together")
	}
}

// checkAddress says what is wrong with ADDRESS:PORT.
func checkAddress(bad func(field, format string, a ...any), field, s string) bool {
	_, port, err := net.SplitHostPort(s)
	if err != nil {
		bad(field, "%q is not ADDRESS:PORT; an IPv6 address stands in brackets", s)
		return false
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		bad(field, "%q is no port: from 1 to 65535; 0 is any that is free", port)
		return false
	}
	return true
}
