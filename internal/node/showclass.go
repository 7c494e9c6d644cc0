package node

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"berth/internal/cgroup"
	"berth/internal/host"
	"berth/internal/vnode"
)

// showClass tells what a node has from its class, beside what its spec asks for.
func showClass(n *vnode.Node, cg host.Cgroups, d *Detail, running bool) ([]cgroup.Shown, error) {
	all, err := cgroup.ShowClass(n, cg, d.Cgroup, running)
	if err != nil || n.Class == "" && n.OOMScoreAdj == nil {
		return all, err
	}
	s := cgroup.Shown{Key: "oom_score_adj", Asked: strconv.Itoa(n.Standing().OOMScore), HonouredBy: "the kernel's OOM killer"}
	if n.OOMScoreAdj == nil {
		s.Note = "from class " + string(n.Class)
	}
	if running {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", d.PID))
		if err == nil {
			s.ReadBack = strings.TrimSpace(string(text))
		}
		if s.Holds = s.ReadBack == s.Asked; !s.Holds {
			s.Note += "; this process may not protect others when memory is short: that takes CAP_SYS_RESOURCE"
		}
	}
	return append(all, s), nil
}
