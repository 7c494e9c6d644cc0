package vnode

import (
	"cmp"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// optionRules are the options that a gateway takes. Each function returns "" for a value that is allowed, else what is.
type optionRules map[string]func(value string) string

// gatewayOptions returns the options of each gateway that has a list of them. Options of other gateways are not looked at
// here. The lists are short on purpose: none has an option that changes the identity that the server sees.
func gatewayOptions() map[string]optionRules {
	return map[string]optionRules{NFSGateway: {
		"vers":        oneOf("4.2", "4.1", "3"),
		"hard":        oneOf("true"),
		"soft":        oneOf("true"),
		"nolock":      oneOf("true"),
		"noac":        oneOf("true"),
		"nocto":       oneOf("true"),
		"sync":        oneOf("true"),
		"noatime":     oneOf("true"),
		"lookupcache": oneOf("all", "none", "pos", "positive"),
		"rsize":       number(1024, 1<<20),
		"wsize":       number(1024, 1<<20),
		"timeo":       number(1, 6000),
		"retrans":     number(1, 100),
		"acregmin":    number(0, 3600),
		"acregmax":    number(0, 3600),
		"acdirmin":    number(0, 3600),
		"acdirmax":    number(0, 3600),
		"actimeo":     number(0, 3600),
		"nconnect":    number(1, 16),
		"port":        number(1, 65535),
	}, SSHFSGateway: sshfsOptions(true), SSHFSDirectGateway: sshfsOptions(false)}
}

// sshfsOptions returns the options of sshfs, with a login or without one.
func sshfsOptions(login bool) optionRules {
	all := optionRules{
		"port":         number(1, 65535),
		"uid":          number(0, 1<<32-2),
		"gid":          number(0, 1<<32-2),
		"direct_io":    oneOf("true", "false"),
		"no_readahead": oneOf("true", "false"),
		"sync":         oneOf("true", "false"),
	}
	if login {
		all["user"], all["identity"], all["known_hosts"] = loginName, hostFile, hostFile
	}
	return all
}

func loginName(value string) string {
	switch {
	case value == "root" || value == "0":
		return "the server's side of sshfs is never root: root there would be everybody's root; name the user who owns the files"
	case !isOption(value) || strings.HasPrefix(value, "-"):
		return "the name of a user on the server"
	}
	return ""
}

func hostFile(value string) string {
	if strings.HasPrefix(value, "/") && path.Clean(value) == value && !strings.ContainsFunc(value, unicode.IsControl) {
		return ""
	}
	return "the absolute path of a file on this host"
}

func oneOf(allowed ...string) func(string) string {
	return func(value string) string {
		if slices.Contains(allowed, value) {
			return ""
		}
		return strings.Join(allowed, ", ")
	}
}

func number(least, most int) func(string) string {
	return func(value string) string {
		if n, err := strconv.Atoi(value); err == nil && n >= least && n <= most && strconv.Itoa(n) == value {
			return ""
		}
		return "a number from " + strconv.Itoa(least) + " to " + strconv.Itoa(most)
	}
}

// checkOptions refuses options that the mount's gateway does not take, and values that these do not.
func checkOptions(r *report, at string, m *Mount) {
	rules, listed := gatewayOptions()[m.Gateway]
	if !listed {
		return
	}
	rests := []string{at + ".gateway"}
	for _, name := range slices.Sorted(maps.Keys(m.Options)) {
		field := at + ".options." + name
		allowed, ok := rules[name]
		if !ok {
			r.badIf(rests, field, "gateway %s has no such option; it has %s", m.Gateway, strings.Join(slices.Sorted(maps.Keys(rules)), ", "))
			continue
		}
		if want := allowed(m.Options[name]); want != "" {
			r.badIf(rests, field, "%q is not allowed: %s", m.Options[name], want)
		}
	}
	switch m.Gateway {
	case NFSGateway:
		checkNFSOptions(r, at, m)
	case SSHFSGateway:
		for _, name := range []string{"user", "identity"} {
			if m.Options[name] == "" {
				r.badIf(rests, at+".options."+name, "missing: sshfs logs in at the server as one user by a key; give user: NAME and identity: FILE")
			}
		}
	}
}

func checkNFSOptions(r *report, at string, m *Mount) {
	if m.Options["vers"] == "3" && m.Options["nolock"] == "" && m.Via != ViaHost {
		r.bad(at+".options.vers", "NFS 3 locks files with services of the host, which are not in the node's network: add nolock: true (locks are then the node's own), or via: host, or use 4.2")
	}
	if m.Options["nolock"] != "" && m.Options["vers"] != "3" {
		r.bad(at+".options.nolock", "only with vers: 3; locks are a part of NFS 4")
	}
	if m.Options["hard"] != "" && m.Options["soft"] != "" {
		r.bad(at+".options.soft", "not together with hard")
	}
}

// checkMap refuses a mount from a file server whose ids would have to be mapped on the way.
func checkMap(r *report, at string, m *Mount) {
	if m.Remote() && m.Map == Idmapped {
		r.badIf([]string{at + ".gateway"}, at+".map", "not possible with gateway %s: the kernel does not map ids on the way to a file server; use identity", m.Gateway)
	}
}

// checkOneUser refuses a mount for one user in a node with several users of the site.
func checkOneUser(r *report, at string, m *Mount, n *Node) {
	if m.Gateway != SSHFSGateway && m.Gateway != SSHFSDirectGateway {
		return
	}
	users := 0
	for _, e := range n.Users {
		if e.As == SameIDs && e.Of != GroupIDs {
			users += e.Count
		}
	}
	if users > 1 {
		r.badIf([]string{"users"}, at+".gateway", "%s is a mount for one user: on the server all its files are that user's; this node has %d users of the site: use nfs, or give the node one", m.Gateway, users)
	}
	if m.Via != ViaHost {
		return
	}
	uid := m.Options["uid"]
	if !n.shares(UserIDs, uid) || !n.shares(GroupIDs, cmp.Or(m.Options["gid"], uid)) {
		r.badIf([]string{"users", at + ".options.uid", at + ".options.gid"}, at+".via", "host: one mount serves several nodes, so its files belong to one user of the host in all of them: "+
			"give users: [{from: N, count: 1, as: same}] and the mount options: {uid: N}")
	}
}

// shares reports whether an id is the same in the node and on the host.
func (n *Node) shares(of, id string) bool {
	number, err := strconv.Atoi(id)
	return err == nil && slices.ContainsFunc(n.Users, func(e IDExtent) bool {
		return e.As == SameIDs && (e.Of == "" || e.Of == of) && number >= e.From && number-e.From < e.Count
	})
}

// checkVia refuses a mount through the network of a node that has none.
func checkVia(r *report, at string, m *Mount, n *Node) {
	if !m.Remote() || m.Via == ViaHost {
		return
	}
	if slices.ContainsFunc(n.Network, func(w Network) bool { return w.Mode != None }) {
		return
	}
	r.badIf([]string{at + ".gateway", at + ".source", at + ".options", "network"}, at+".via", "node: the node has no network interface; give it one, or use via: host")
}

// checkBeneath refuses a target that lies in a mount from a file server: that one comes last, over everything there.
func checkBeneath(r *report, at string, m *Mount, n *Node) {
	for _, o := range n.Mounts {
		if o.Remote() && strings.HasPrefix(m.Target, o.Target+"/") {
			r.bad(at+".target", "%q lies in %s, which is on a file server; mount it beside that", m.Target, o.Target)
		}
	}
}
