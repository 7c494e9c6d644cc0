package host

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// kernel checks what every node needs of the kernel, whatever its spec.
func (d *doctor) kernel() []Check {
	return []Check{
		d.root(), d.version(), d.calls(), d.namespaces(), d.userNamespaces(), d.seccomp(), d.keys(), d.tables(), d.nofile(),
		d.exitStatus(),
	}
}

func (d *doctor) root() Check {
	c := Check{
		Name: "root", State: OK, Found: "root", Mandatory: true,
		Why: "namespaces, mounts, cgroups and links of a node are made by root of the host",
	}
	// An identity mapping of all ids is what only the initial user namespace has (user_namespaces(7)).
	initial := slices.Equal(strings.Fields(d.text("/proc/self/uid_map")), []string{"0", "0", "4294967295"})
	switch {
	case d.UID != 0:
		c.State, c.Found, c.Wanted = Off, "user id "+strconv.Itoa(d.UID), "user id 0"
		c.Remedy = "sudo berth doctor"
	case !initial:
		c.State, c.Found, c.Wanted = Lacks, "root of a user namespace", "root of the host"
		c.Remedy = "# run berth outside of the container"
	}
	return c
}

func (d *doctor) version() Check {
	c := Check{
		Name: "kernel", State: OK, Found: d.facts.Kernel, Wanted: "5.19 or newer", Mandatory: true,
		Why: "a node's root is an overlay over id-mapped layers, which Linux has since 5.19",
	}
	switch {
	case d.facts.Kernel == "":
		c.State, c.Found = Broken, fmt.Sprint(d.factsErr)
	case !d.facts.Version.AtLeast(5, 19):
		c.State, c.Remedy = Lacks, d.pkg.newerKernel()
	case d.factsErr != nil:
		c.State, c.Found = Broken, d.factsErr.Error()
	}
	return c
}

func (p packages) newerKernel() string {
	if strings.HasPrefix(p.install, "apt-get") {
		return "apt-get install -y linux-image-amd64   # Debian 12 has 6.1\nreboot"
	}
	return "# install kernel 5.19 or newer and reboot"
}

func (d *doctor) calls() Check {
	names := slices.Sorted(maps.Keys(d.Calls))
	c := Check{
		Name: "system calls", State: OK, Found: strings.Join(names, " "), Mandatory: true,
		Why: "files are opened without following links out of a root, processes are held by what cannot be reused",
	}
	var bad []string
	for _, n := range names {
		if err := d.Calls[n]; err != nil {
			bad = append(bad, fmt.Sprintf("%s: %v", n, err))
		}
	}
	if len(bad) > 0 {
		c.State, c.Found, c.Wanted = Broken, strings.Join(bad, ", "), strings.Join(names, " ")
		c.Remedy = "# run berth outside of the container or sandbox that forbids them"
	}
	return c
}

func (d *doctor) namespaces() Check {
	wanted := []string{"cgroup", "ipc", "mnt", "net", "pid", "user", "uts"}
	c := Check{
		Name: "namespaces", State: OK, Found: strings.Join(wanted, " "), Mandatory: true,
		Why: "they are what makes a node a host of its own",
	}
	var missing []string
	for _, ns := range wanted {
		if !d.exists("/proc/self/ns/" + ns) {
			missing = append(missing, ns)
		}
	}
	if len(missing) > 0 {
		c.State, c.Found, c.Wanted = Lacks, "no "+strings.Join(missing, ", "), strings.Join(wanted, " ")
		c.Remedy = "# boot a kernel with CONFIG_NAMESPACES and all kinds of namespaces"
	}
	return c
}

func (d *doctor) userNamespaces() Check {
	most := d.text("/proc/sys/user/max_user_namespaces")
	c := Check{
		Name: "user namespaces", State: OK, Found: "at most " + most, Mandatory: true,
		Why: "a node's root is nobody outside",
	}
	switch most {
	case "":
		c.State, c.Found, c.Remedy = d.built.absent("USER_NS"), "none", "# boot a kernel with CONFIG_USER_NS=y"
	case "0":
		c.State, c.Found, c.Wanted = Off, "at most 0", "one a node"
		c.Remedy = "sysctl -w user.max_user_namespaces=10000"
	}
	return c
}

func (d *doctor) seccomp() Check {
	actions := d.text("/proc/sys/kernel/seccomp/actions_avail")
	c := Check{
		Name: "seccomp", State: OK, Found: actions, Mandatory: true,
		Why: "nodes run under a filter of system calls",
	}
	if !strings.Contains(actions, "errno") {
		c.State, c.Found, c.Wanted = Lacks, "no filters", "CONFIG_SECCOMP_FILTER"
		c.Remedy = "# boot a kernel with CONFIG_SECCOMP_FILTER=y"
	}
	return c
}

// fewKeys is the quota of keys below which a busy host runs out: each container takes a session keyring.
const fewKeys = 2000

func (d *doctor) keys() Check {
	most, err := strconv.Atoi(d.text("/proc/sys/kernel/keys/root_maxkeys"))
	c := Check{
		Name: "keyrings", State: OK, Found: fmt.Sprintf("root may have %d keys", most),
		Why: "each node has a keyring of its own; without quota left nodes do not start (EDQUOT)",
	}
	switch {
	case err != nil:
		c.State, c.Found, c.Remedy = Lacks, "no keyrings", "# nodes share the session's keyring: boot a kernel with CONFIG_KEYS=y"
	case most < fewKeys:
		c.State, c.Wanted = Off, strconv.Itoa(fewKeys)+" or more"
		c.Remedy = "sysctl -w kernel.keys.root_maxkeys=1000000\nsysctl -w kernel.keys.root_maxbytes=25000000"
	}
	return c
}

// tables looks at tables of the kernel that a single node can fill, for all others and for the host's own services.
func (d *doctor) tables() Check {
	c := Check{
		Name: "shared tables", State: OK,
		Why: "one node can use up these, which the kernel counts for the host's root or for all together (SECURITY: tables that all share)",
	}
	var found, wanted, remedies []string
	for _, t := range []struct {
		file  string
		least int
		what  string
	}{
		{"fs.inotify.max_user_instances", 1024, "inotify instances"},
		{"fs.aio-max-nr", 1 << 20, "requests of asynchronous I/O"},
		{"net.ipv4.neigh.default.gc_thresh3", 4096, "neighbours"},
	} {
		has, err := strconv.Atoi(d.text("/proc/sys/" + strings.ReplaceAll(t.file, ".", "/")))
		if err != nil {
			continue
		}
		found = append(found, fmt.Sprintf("%d %s", has, t.what))
		if has < t.least {
			wanted = append(wanted, fmt.Sprintf("%d %s", t.least, t.what))
			remedies = append(remedies, fmt.Sprintf("sysctl -w %s=%d", t.file, t.least))
		}
	}
	if c.Found = strings.Join(found, ", "); c.Found == "" {
		c.Found = "this kernel does not tell"
	}
	if len(wanted) > 0 {
		c.State, c.Wanted, c.Remedy = Off, strings.Join(wanted, ", "), strings.Join(remedies, "\n")
	}
	return c
}

// plentyFiles is the number of open files that a file server or a job on a big machine asks for.
const plentyFiles = 65536

func (d *doctor) nofile() Check {
	most := d.hardNofile()
	c := Check{
		Name: "resource limits", State: OK, Found: fmt.Sprintf("nofile %d, can be raised (CAP_SYS_RESOURCE)", most),
		Why: "rlimits of a spec beyond the host's hard limits are refused",
	}
	if !d.facts.SysRes {
		c.Found = fmt.Sprintf("nofile %d, cannot be raised: no CAP_SYS_RESOURCE", most)
		if most < plentyFiles {
			c.State, c.Wanted = Off, fmt.Sprintf("nofile %d, or CAP_SYS_RESOURCE", plentyFiles)
			c.Remedy = "# start berth with CAP_SYS_RESOURCE, or under a higher ulimit -Hn"
		}
	}
	return c
}

func (d *doctor) exitStatus() Check {
	c := Check{
		Name: "exit status by pidfd", State: OK, Found: "6.15 or newer", Why: "exit codes of nodes that outlive the keeper are known",
	}
	if !d.facts.Version.AtLeast(6, 15) {
		c.State, c.Found, c.Wanted = Lacks, "older than 6.15", "6.15 or newer"
		c.Why = "if the keeper is killed, exit codes of the nodes it started are unknown"
	}
	return c
}
