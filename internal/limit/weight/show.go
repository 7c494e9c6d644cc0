package weight

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"berth/internal/host"
	"berth/internal/spec/vnode"
	"berth/internal/sys/proc"
	"berth/internal/sys/proof"
)

// Show tells which values a node has from its class, beside those that its spec asks for. pid is the node's process 1, if it
// runs.
func Show(on host.Host, n *vnode.Node, cg host.Cgroups, groupPath string, pid int, running bool) ([]proof.Limit, error) {
	all, err := ShowClass(n, cg, groupPath, running)
	if err != nil || n.Class == "" && n.OOMScoreAdj == nil {
		return all, err
	}
	if n.Standing().IOPolicy == "idle" {
		all = append(all, showPriority(n, pid, running))
	}
	s := proof.Limit{Key: "oom_score_adj", Asked: strconv.Itoa(n.Standing().OOMScore), By: "the kernel's OOM killer"}
	if n.OOMScoreAdj == nil {
		s.Note = "from class " + string(n.Class)
	}
	if running {
		text, err := os.ReadFile(filepath.Join(on.Proc, strconv.Itoa(pid), "oom_score_adj"))
		if err == nil {
			s.ReadBack = strings.TrimSpace(string(text))
		}
		if s.Holds = s.ReadBack == s.Asked; !s.Holds {
			s.Note += "; this process may not protect others when memory is short: that takes CAP_SYS_RESOURCE"
		}
	}
	return append(all, s), nil
}

// showPriority tells the I/O priority of the node's process 1, which those that it starts inherit.
func showPriority(n *vnode.Node, pid int, running bool) proof.Limit {
	s := proof.Limit{
		Key: "class.io.priority", Asked: "idle", By: "ioprio",
		Note: "from class " + string(n.Class) + "; on disks with the scheduler mq-deadline or bfq; a process may raise its own",
	}
	if !running {
		return s
	}
	idle, err := proc.IOIdle(pid)
	if s.Holds = err == nil && idle; s.Holds {
		s.ReadBack = "idle"
	}
	return s
}
