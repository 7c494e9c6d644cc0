// Package control reads and changes the state of Slurm's controller by calling Slurm's own programs. Arguments are passed as they
// are, never through a shell.
package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"berth/internal/site/slurm/hostlist"
	"berth/internal/sys/fork"
	"berth/internal/sys/refuse"
)

// Slurm is the controller of a cluster.
type Slurm struct {
	folders []string
	moves   *moves
}

// Open finds Slurm's programs: on the path, or where packages and sites put them. slurmctld starts programs with hardly any environment.
func Open() Slurm {
	return Slurm{append(filepath.SplitList(os.Getenv("PATH")), "/usr/bin", "/usr/local/bin", "/opt/slurm/bin"), &moves{}}
}

// run runs one of Slurm's programs and returns what it printed, also if it failed.
func (s Slurm) run(ctx context.Context, program string, args ...string) ([]byte, error) {
	path := ""
	for _, dir := range s.folders {
		if p := filepath.Join(dir, program); filepath.IsAbs(p) && executable(p) {
			path = p
			break
		}
	}
	if path == "" {
		return nil, refuse.Cannotf("install Slurm's client programs (Debian: slurm-client)", "%s is not installed", program)
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), "SLURM_TIME_FORMAT=standard", "LC_ALL=C")
	var out, says bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &says
	if err := fork.Run(cmd); err != nil {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			said := strings.TrimSpace(says.String())
			if said != "" {
				said = fmt.Sprintf(", and %s says: %.300s", program, said)
			}
			return out.Bytes(), fmt.Errorf("%s %s: slurmctld did not answer in time%s; see systemctl status slurmctld on its host: %w",
				program, strings.Join(args, " "), said, ctx.Err())
		}
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			return out.Bytes(), fmt.Errorf("%s %s ends with %d: %.300s", program, strings.Join(args, " "), exit.ExitCode(), strings.TrimSpace(says.String()+out.String()))
		}
		return nil, fmt.Errorf("%s %s: %w", program, strings.Join(args, " "), err)
	}
	return out.Bytes(), nil
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// Node is a node as Slurm knows it.
type Node struct {
	Name    string
	State   []string // IDLE, CLOUD, POWERED_DOWN …
	Address string   // where it is; its name, if that was not told
	Reason  string
	Since   time.Time // when the reason was given
}

// Failed reports whether a node is out of service for one of these reasons, by how they begin.
func (n Node) Failed(reasons ...string) bool {
	return n.Is("DOWN") && slices.ContainsFunc(reasons, func(r string) bool { return strings.HasPrefix(n.Reason, r) })
}

// Is reports whether a node has a state or flag.
func (n Node) Is(state string) bool { return slices.Contains(n.State, state) }

// Nodes returns the nodes with these names.
func (s Slurm) Nodes(ctx context.Context, names []string) ([]Node, error) {
	out, err := s.run(ctx, "scontrol", "show", "node", hostlist.Compress(names))
	if all := parseNodes(string(out)); len(all) > 0 { // scontrol prints those that it knows, and fails for the others
		return all, nil
	}
	return nil, err
}

func parseNodes(text string) (all []Node) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		for i, word := range strings.Fields(line) {
			key, value, _ := strings.Cut(word, "=")
			switch {
			case i == 0 && key == "NodeName":
				all = append(all, Node{Name: value})
			case len(all) == 0:
			case i == 0 && key == "NodeAddr":
				all[len(all)-1].Address = value
			case i == 0 && key == "State":
				for s := range strings.SplitSeq(value, "+") {
					all[len(all)-1].State = append(all[len(all)-1].State, strings.TrimRight(s, "*~#!%$@^-"))
				}
			case i == 0 && key == "Reason":
				all[len(all)-1].Reason, all[len(all)-1].Since = reason(strings.TrimPrefix(line, "Reason="))
			}
		}
	}
	return all
}

// reason cuts the author and the time off the end of a reason: Not responding [slurm@2026-11-26T02:40:48].
func reason(text string) (string, time.Time) {
	i := strings.LastIndex(text, " [")
	if i < 0 {
		return text, time.Time{}
	}
	_, when, _ := strings.Cut(strings.TrimSuffix(text[i:], "]"), "@")
	at, err := time.ParseInLocation("2006-01-02T15:04:05", when, time.Local)
	if err != nil {
		return text, time.Time{}
	}
	return text[:i], at
}

// moves are the nodes whose addresses slurmctld is told next.
type moves struct {
	mu   sync.Mutex
	next *move

	telling sync.Mutex // one scontrol at a time
}

// move is nodes that slurmctld is told of by one scontrol.
type move struct {
	nodes, addresses []string
	tell             sync.Once
	err              error
}

// Address tells Slurm the address of a node. Calls that come while slurmctld is told of other nodes are collected and sent together
// afterwards, so that very many nodes that come up at the same time do not start a program each.
func (s Slurm) Address(ctx context.Context, node, address string) error {
	s.moves.mu.Lock()
	if s.moves.next == nil {
		s.moves.next = &move{}
	}
	m := s.moves.next
	m.nodes, m.addresses = append(m.nodes, node), append(m.addresses, address)
	s.moves.mu.Unlock()
	m.tell.Do(func() {
		s.moves.telling.Lock()
		defer s.moves.telling.Unlock()
		s.moves.mu.Lock()
		s.moves.next = nil // callers from now on are in the next one
		s.moves.mu.Unlock()
		m.err = s.addresses(ctx, m.nodes, m.addresses)
	})
	if m.err != nil && len(m.nodes) > 1 { // one of them is to blame, perhaps another
		return s.addresses(ctx, []string{node}, []string{address})
	}
	return m.err
}

// addresses tells where nodes are. Slurm takes lists of the same length.
func (s Slurm) addresses(ctx context.Context, nodes, addresses []string) error {
	names := strings.Join(nodes, ",")
	return s.update(ctx, "NodeName="+names, "NodeAddr="+strings.Join(addresses, ","), "NodeHostName="+names)
}

// Down takes nodes out of service. Their jobs are queued again or end, as Slurm is told; the reason is what sinfo -R shows.
func (s Slurm) Down(ctx context.Context, names []string, reason string) error {
	return s.update(ctx, "NodeName="+hostlist.Compress(names), "State=DOWN", "Reason="+plain(reason))
}

// PowerDown has nodes removed, also if jobs run on them.
func (s Slurm) PowerDown(ctx context.Context, names []string) error {
	return s.update(ctx, "NodeName="+hostlist.Compress(names), "State=POWER_DOWN_FORCE")
}

// PowerDownIdle has nodes removed on which nothing runs, also if they are powered down; others once nothing runs on them.
func (s Slurm) PowerDownIdle(ctx context.Context, names []string) error {
	return s.update(ctx, "NodeName="+hostlist.Compress(names), "State=POWER_DOWN")
}

// PowerDownNext has nodes removed once nothing runs on them. Until then no job gets them.
func (s Slurm) PowerDownNext(ctx context.Context, names []string) error {
	return s.update(ctx, "NodeName="+hostlist.Compress(names), "State=POWER_DOWN_ASAP")
}

// PowerUp has nodes made that no job waits for.
func (s Slurm) PowerUp(ctx context.Context, names []string) error {
	return s.update(ctx, "NodeName="+hostlist.Compress(names), "State=POWER_UP")
}

// Resume gives nodes back to jobs that were down.
func (s Slurm) Resume(ctx context.Context, names []string) error {
	return s.update(ctx, "NodeName="+hostlist.Compress(names), "State=RESUME")
}

// Idle tells Slurm that nothing runs on nodes. slurmctld refuses it for those with a job.
func (s Slurm) Idle(ctx context.Context, names []string) error {
	return s.update(ctx, "NodeName="+hostlist.Compress(names), "State=IDLE")
}

// Note writes a job's AdminComment, which only admins can change.
func (s Slurm) Note(ctx context.Context, job string, text string) error {
	return s.update(ctx, "JobId="+job, "AdminComment="+text)
}

// Account writes text into the accounts as the SystemComment of a job that has ended: slurmctld does not change such a job any more, and sends no
// SystemComment of its own afterwards. Of an id that was queued again it is the last run. text has no quotes and no capital letters, which sacctmgr would replace.
func (s Slurm) Account(ctx context.Context, job string, text string) error {
	_, err := s.run(ctx, "sacctmgr", "--immediate", "--quiet", "modify", "job", "where", "JobId="+job, "set", "SystemComment="+text)
	return err
}

// Accounted returns when the last run of a job that the accounts know of was submitted; "" if they know of none.
func (s Slurm) Accounted(ctx context.Context, job string) (string, error) {
	out, err := s.run(ctx, "sacct", "--allocations", "--noheader", "--parsable2", "--jobs="+job, "--format=Submit")
	first, _, _ := strings.Cut(string(out), "\n")
	return first, err
}

// Config returns the settings of the cluster, as slurmctld has them.
func (s Slurm) Config(ctx context.Context) (map[string]string, error) {
	out, err := s.run(ctx, "scontrol", "show", "config")
	all := map[string]string{}
	for line := range strings.Lines(string(out)) {
		if key, value, ok := strings.Cut(line, "="); ok {
			all[strings.TrimSpace(key)] = strings.TrimSpace(value)
		}
	}
	return all, err
}

// Noted returns when a job was submitted, and its AdminComment. Nothing else is asked for: a job's name with line ends in it could imitate it.
func (s Slurm) Noted(ctx context.Context, job string) (submitted, text string, err error) {
	out, err := s.run(ctx, "squeue", "--noheader", "--states=all", "--jobs="+job, "--Format=SubmitTime:24,admin_comment:"+strconv.Itoa(longestNote))
	submitted, text, _ = strings.Cut(strings.TrimSpace(string(out)), " ")
	return submitted, strings.TrimSpace(text), err
}

// longestNote is the most bytes of a note that are read.
const longestNote = 1 << 16

// Hold queues a job again and holds it, until an admin or its user lets it go.
func (s Slurm) Hold(ctx context.Context, job string) error {
	_, err := s.run(ctx, "scontrol", "requeuehold", job)
	return err
}

func (s Slurm) update(ctx context.Context, pairs ...string) error {
	_, err := s.run(ctx, "scontrol", append([]string{"update"}, pairs...)...)
	return err
}

// longestReason is the most bytes of a reason: sinfo -R shows the first 20, scontrol all.
const longestReason = 300

// plain makes a reason one line without quotes, which Slurm would take for its own.
func plain(reason string) string {
	reason = strings.Map(func(r rune) rune {
		switch {
		case r == '"' || r == '\'':
			return -1
		case r < ' ' || r == 0x7f:
			return ' '
		}
		return r
	}, reason)
	return strings.ToValidUTF8(reason[:min(len(reason), longestReason)], "")
}
