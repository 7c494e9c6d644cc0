package show

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"berth/internal/host/counters"
	"berth/internal/node"
	"berth/internal/runner"
	"berth/internal/spec/vnode"
	"berth/internal/storage/scratch"
	"berth/internal/sys/text"
)

// Detail writes all that is known of a node.
func Detail(out io.Writer, width int, d *node.Detail) error {
	row := func(k, v string) {
		if v != "" {
			text.Wrap(out, width, 16, fmt.Sprintf("%-15s ", k), v)
		}
	}
	row("name", d.Name)
	row("host name", d.Hostname)
	row("state", stateText(&d.Status)+restartsBefore(&d.Status))
	if d.Refused != nil {
		row("restart failed", d.Refused.Why)
	}
	if d.Runs() {
		row("process 1", strconv.Itoa(d.PID)+" on the host, for "+text.Ago(d.Started))
	}
	row("health", healthText(d.Health))
	row("phase", d.Phase)
	row("image", d.Image)
	row("command", runner.Quote(d.Command))
	row("user", d.User)
	row("runtime", d.Runtime)
	if m := d.Machine; m != nil {
		row("machine", fmt.Sprintf("%d CPU, %s, kernel %s %s", m.CPUs, m.Memory, m.Kernel, m.Cmdline))
	}
	row("ids on the host", d.IDs)
	for _, e := range d.Users {
		row("users", extentText(e))
	}
	var labels []string
	for _, name := range slices.Sorted(maps.Keys(d.Labels)) {
		labels = append(labels, name+"="+d.Labels[name])
	}
	row("labels", strings.Join(labels, ", "))
	row("cgroup", d.Cgroup)
	for _, p := range d.Outside {
		row("OUTSIDE", p+": the limits of the cgroup do not hold it; berth repair brings it back")
	}
	row("uses", used(d.Usage))
	row("held back", heldBack(d.Usage))
	for _, l := range d.Links {
		words := []string{l.Mode, l.MAC.String()}
		if l.MTU != 0 { // known if the node runs or the spec gives it
			words = append(words, fmt.Sprintf("mtu %d", l.MTU))
		}
		words = append(words, l.Address...)
		if len(l.Ports) > 0 {
			words = append(words, "ports "+strings.Join(l.Ports, ", "))
		}
		if l.Lease != nil {
			words = append(words, leased(l.Lease))
		}
		if l.Spoof != nil {
			words = append(words, spoofText(l.Spoof, d.Runs()))
		}
		row("link "+l.Name, strings.Join(slices.DeleteFunc(words, func(s string) bool { return s == "" }), " "))
	}
	for _, m := range d.Mounts {
		row("mount "+m.Target, mounted(m))
		for _, e := range d.Exposed {
			if e.Target == m.Target {
				row("", "EXPOSED: the host's users can run what the node leaves in "+e.Source+
					" with its set-user-id bits and capabilities: "+e.Why)
			}
		}
	}
	for _, t := range d.Tmpfs {
		row("tmpfs "+t.Target, tmpfs(t))
	}
	for _, p := range d.Scratch {
		row("scratch "+p.Target, placeText(p))
	}
	for _, t := range d.Trouble {
		row("trouble", t)
	}
	if err := devices(out, width, d.Devices); err != nil {
		return err
	}
	return Limits(out, width, d.Limits)
}

// mounted says what is mounted, and how.
func mounted(m vnode.Mount) string {
	words := m.Source
	if m.Gateway != "" && m.Gateway != vnode.BindGateway {
		words += " by " + m.Gateway
	}
	if m.ReadOnly {
		words += ", read-only"
	}
	if m.Map == vnode.Identity && !m.Remote() {
		words += ", with the host's ids"
	}
	return words
}

func tmpfs(t vnode.Tmpfs) string {
	size := "half of memory.max or of the host's memory"
	if t.Size != 0 {
		size = t.Size.String()
	}
	return "at most " + size + text.Either(t.Mode == "", "", ", mode "+t.Mode)
}

// placeText says where a scratch volume lies, and what limits it.
func placeText(p scratch.Place) string {
	words := p.Size.String() + " of pool " + p.Pool
	switch p.FS {
	case "tmpfs":
		return words + ", in memory"
	case "quota":
		words += fmt.Sprintf(", project quota, %d files", p.Files)
	case "":
	default:
		words += ", " + p.FS
	}
	if p.Path != "" {
		words += ", " + p.Path
	}
	if len(p.Disks) > 0 {
		words += ", on " + strings.Join(p.Disks, ", ")
		if len(p.Limits) > 0 {
			words += ", limited by io." + strings.Join(p.Limits, ", io.")
		} else {
			words += ", where no limit of the node acts"
		}
	}
	if p.Note != "" {
		words += ": " + p.Note
	}
	return words
}

// extentText says what ids a node has besides 0 to 65535, or in place of some of them.
func extentText(e vnode.IDExtent) string {
	words, who := "of its own, on the host among the ids above", "user"
	if e.Of == vnode.GroupIDs {
		who = "group"
	}
	if e.As == vnode.SameIDs {
		words = "HOST-USERS: the same ids on the host and on the wire, shared with other nodes; root inside is each " + who
	}
	if e.Of != "" {
		words += " (of " + who + "s alone)"
	}
	return e.Range().String() + ": " + words
}

// healthText says what a node's health checks found; "" without checks.
func healthText(h *node.Health) string {
	if h == nil {
		return ""
	}
	words := h.State + " for " + text.Ago(h.Since)
	if h.Failures > 0 {
		words += ", " + text.Count(h.Failures, "check") + " failed in a row"
	}
	if h.Output != "" {
		words += ": " + strconv.Quote(h.Output)
	}
	return words
}

// spoofText describes the spoof check of an interface; "" for a stopped node whose interface has one.
func spoofText(d *node.Spoof, running bool) string {
	switch {
	case !d.Refused:
		return "may spoof"
	case !running:
		return ""
	case !d.Holds:
		return "WITHOUT its spoof check"
	}
	return "spoof check " + d.Program
}

// leased says from which server a DHCP address comes and when its lease ends.
func leased(l *node.Lease) string {
	words := "by DHCP"
	if l.Server != "" {
		words += " from " + l.Server
	}
	if l.Ends.IsZero() {
		return words + " for ever"
	}
	return words + " until " + l.Ends.Format("2006-01-02 15:04:05")
}

// used says what a running node uses; "" if u is nil.
func used(u *counters.Usage) string {
	if u == nil {
		return ""
	}
	var all []string
	if u.Memory != nil {
		all = append(all, text.Human(*u.Memory)+" of memory")
	}
	if u.PIDs != nil {
		all = append(all, text.Count(int(*u.PIDs), "task"))
	}
	if u.CPU != nil {
		all = append(all, fmt.Sprintf("%.1f s of CPU", u.CPU.Seconds()))
	}
	return strings.Join(all, ", ")
}

// heldBack says how often and how long the limits held a node back since it started; "" if they did not.
func heldBack(u *counters.Usage) string {
	if u == nil {
		return ""
	}
	var all []string
	if u.Throttled != nil && *u.Throttled > 0 {
		all = append(all, fmt.Sprintf("%.1f s by cpu.max", u.Throttled.Seconds()))
	}
	times := func(n *int64, key string) {
		if n != nil && *n > 0 {
			all = append(all, text.Count(int(*n), "time")+" by "+key)
		}
	}
	times(u.AtHigh, "memory.high")
	times(u.AtLimit, "memory.max")
	if u.Reclaims != nil && *u.Reclaims > 0 {
		all = append(all, text.Human(*u.Reclaims)+" of memory taken back")
	}
	if u.OOMKills != nil && *u.OOMKills > 0 {
		all = append(all, text.Count(int(*u.OOMKills), "kill")+" for lack of memory")
	}
	return strings.Join(all, ", ")
}
