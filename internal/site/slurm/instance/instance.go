// Package instance gives a user a fresh node of Slurm's pool for some hours, reached by ssh: behind the scenes it is a job of that user,
// whose only process is an sshd of the user's own.
//
// All it does to Slurm it does by Slurm's own commands, as the user who calls it, so nobody gets more than Slurm gives this user. Slurm has no
// event that says when a job starts: it is asked again, less often the longer it takes.
package instance

import (
	"bytes"
	"context"
	_ "embed" // the job
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"berth/internal/sys/fork"
	"berth/internal/sys/refuse"
	"berth/internal/sys/text"
)

// Name is the name of every job that is an instance.
const Name = "berth-instance"

//go:embed job.sh
var job []byte

// noSSHD is the exit code of the job where the node has no sshd.
const noSSHD = 3

// Request is an instance that is asked for.
type Request struct {
	Template  string        // a feature that the node must have; "": any node
	Partition string        // "": Slurm's default
	Time      time.Duration // until it ends by itself; whole minutes
	Keys      []string      // public keys that may log in, a line each
	Port      int           // of sshd in the node
}

// Instance is an instance that was asked for. Fields that are not known yet are empty.
type Instance struct {
	Job     int       `json:"job"`
	User    string    `json:"user"`
	State   string    `json:"state"`             // Slurm's word: PENDING, CONFIGURING, RUNNING …
	Reason  string    `json:"reason,omitempty"`  // why it waits
	Node    string    `json:"node,omitempty"`    // Slurm's name of the node
	Address string    `json:"address,omitempty"` // where the node is reached
	Until   time.Time `json:"until,omitzero"`    // when it ends by itself
}

// Waits reports whether the instance may run later.
func (i Instance) Waits() bool {
	return i.State == "PENDING" || i.State == "CONFIGURING" || i.State == "REQUEUED" || i.State == "SUSPENDED"
}

// Submit asks Slurm for an instance, and returns the number of its job.
func Submit(ctx context.Context, r Request) (int, error) {
	minutes := int((r.Time + time.Minute - 1) / time.Minute)
	args := []string{
		"--parsable", "--job-name=" + Name, "--nodes=1", "--exclusive", "--no-requeue", "--export=NIL", "--chdir=/",
		"--output=/dev/null", "--time=" + strconv.Itoa(minutes),
	}
	if r.Template != "" {
		args = append(args, "--constraint="+r.Template)
	}
	if r.Partition != "" {
		args = append(args, "--partition="+r.Partition)
	}
	args = append(args, "/dev/stdin", strconv.Itoa(r.Port))
	out, err := slurm(ctx, bytes.NewReader(job), "sbatch", append(args, r.Keys...)...)
	switch {
	case err != nil && strings.Contains(err.Error(), "Invalid feature specification"):
		return 0, refuse.Invalidf("--template %s: no node of the pool has it: %w", r.Template, err)
	case err != nil && strings.Contains(err.Error(), "Invalid partition name"):
		return 0, refuse.Invalidf("--partition %s: %w (sinfo lists them)", r.Partition, err)
	case err != nil:
		return 0, err
	}
	number, _, _ := strings.Cut(strings.TrimSpace(out), ";") // JOB;CLUSTER
	id, err := strconv.Atoi(number)
	if err != nil {
		return 0, fmt.Errorf("sbatch said %q, which is no number of a job", strings.TrimSpace(out))
	}
	return id, nil
}

// Wait waits until an instance has a node, and calls say with each new state or reason. Errors: the job ended, or was cancelled.
func Wait(ctx context.Context, id int, say func(Instance)) (Instance, error) {
	var last Instance
	for pause := 200 * time.Millisecond; ; pause = min(pause*5/4, 5*time.Second) {
		i, err := Find(ctx, id)
		switch {
		case err != nil:
			return i, err
		case !i.Waits() && i.State != "RUNNING":
			return i, whyEnded(ctx, i)
		case i.State != last.State || i.Reason != last.Reason:
			say(i)
			last = i
		}
		if i.State == "RUNNING" {
			return i, nil
		}
		select {
		case <-ctx.Done():
			return i, context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

// HostKey waits until an instance that runs takes connections, and returns the public key of its sshd: the node makes it, and Slurm,
// which knows the node, brings it.
func HostKey(ctx context.Context, id int) (string, error) {
	const wait = `dir=/tmp/berth-instance-$SLURM_JOB_ID; until test -e "$dir/pid"; do sleep 0.1; done; cat "$dir/host.pub"`
	out, err := slurm(ctx, nil, "srun", "--jobid="+strconv.Itoa(id), "--overlap", "--ntasks=1", "--export=NIL", "--chdir=/", "--quiet", "/bin/sh", "-c", wait)
	if err != nil {
		if i, gone := Find(ctx, id); gone == nil && i.State != "RUNNING" {
			return "", whyEnded(ctx, i)
		}
		return "", err
	}
	f := strings.Fields(out)
	if len(f) < 2 || !strings.HasPrefix(f[0], "ssh-") {
		return "", fmt.Errorf("the instance gave no key of its sshd, but %q", strings.TrimSpace(out))
	}
	return f[0] + " " + f[1], nil
}

// Down ends an instance.
func Down(ctx context.Context, id int) error {
	i, err := Find(ctx, id)
	if err != nil {
		return err
	}
	if !i.Waits() && i.State != "RUNNING" {
		return refuse.NotFoundf("instance %d has ended already (%s)", id, i.State)
	}
	_, err = slurm(ctx, nil, "scancel", "--name="+Name, strconv.Itoa(id))
	return err
}

// format is squeue's: job, state, reason, node, end, user. A user's name comes last, because a site may have names with bars in them.
const format = "%i|%T|%r|%N|%e|%u"

// Find returns one instance. Errors: refuse.NotFound if Slurm has no such job, or it is none.
func Find(ctx context.Context, id int) (Instance, error) {
	out, err := slurm(ctx, nil, "squeue", "--noheader", "--name="+Name, "--states=all", "--jobs="+strconv.Itoa(id), "--format="+format)
	if err != nil && !strings.Contains(err.Error(), "Invalid job id") {
		return Instance{}, err
	}
	all, err := parse(out)
	if err != nil {
		return Instance{}, err
	}
	if len(all) == 0 {
		return Instance{}, refuse.NotFoundf("there is no instance %d (berth instance ls lists them)", id)
	}
	return withAddress(ctx, all)[0], nil
}

// List returns the instances of the user who calls, or of all users.
func List(ctx context.Context, everybody bool) ([]Instance, error) {
	args := []string{"--noheader", "--name=" + Name, "--format=" + format}
	if !everybody {
		args = append(args, "--me")
	}
	out, err := slurm(ctx, nil, "squeue", args...)
	if err != nil {
		return nil, err
	}
	all, err := parse(out)
	return withAddress(ctx, all), err
}

// parse reads the output of squeue.
func parse(out string) ([]Instance, error) {
	all := []Instance{}
	for line := range strings.Lines(out) {
		f := strings.SplitN(strings.TrimSpace(line), "|", 6)
		if len(f) != 6 {
			return nil, fmt.Errorf("squeue said %q, not %s", strings.TrimSpace(line), format)
		}
		if strings.ContainsAny(f[0], "_+") { // an array of jobs or a heterogeneous job: not Berth's, although somebody gave it the name
			continue
		}
		id, err := strconv.Atoi(f[0])
		if err != nil {
			return nil, fmt.Errorf("squeue said %q, which is no number of a job", f[0])
		}
		i := Instance{Job: id, State: f[1], Node: f[3], User: f[5]}
		if f[2] != "None" && i.Waits() {
			i.Reason = f[2]
		}
		if !i.Waits() {
			i.Until, _ = time.ParseInLocation("2006-01-02T15:04:05", f[4], time.Local) // "N/A", "Unknown": not known
		}
		all = append(all, i)
	}
	return all, nil
}

// withAddress completes instances that have a node by its address. It is left out where Slurm does not say it.
func withAddress(ctx context.Context, all []Instance) []Instance {
	var nodes []string
	for _, i := range all {
		if i.Node != "" {
			nodes = append(nodes, i.Node)
		}
	}
	if len(nodes) == 0 {
		return all
	}
	out, err := slurm(ctx, nil, "sinfo", "--noheader", "--Node", "--nodes="+strings.Join(nodes, ","), "--format=%N|%o|")
	if err != nil {
		return all
	}
	at := map[string]string{}
	for line := range strings.Lines(out) {
		if f := strings.Split(strings.TrimSpace(line), "|"); len(f) == 3 {
			at[f[0]] = f[1]
		}
	}
	for n := range all {
		all[n].Address = at[all[n].Node]
	}
	return all
}

// whyEnded is the error of an instance that ended before it could be used.
func whyEnded(ctx context.Context, i Instance) error {
	out, _ := slurm(ctx, nil, "scontrol", "--oneliner", "show", "job", strconv.Itoa(i.Job))
	_, code, _ := strings.Cut(out, " ExitCode=")
	code, _, _ = strings.Cut(code, ":") // CODE:SIGNAL
	if code == strconv.Itoa(noSSHD) {
		return refuse.Cannotf("the admin of the pool puts openssh-server into the node's image", "instance %d: its node %s has no sshd and ssh-keygen", i.Job, i.Node)
	}
	return fmt.Errorf("instance %d ended before it could be used: %s on node %s (its sshd's exit code: %s)", i.Job, i.State, text.OrDash(i.Node), text.OrDash(code))
}

// slurm runs one of Slurm's commands, and returns its output.
func slurm(ctx context.Context, in *bytes.Reader, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "SLURM_TIME_FORMAT=standard", "LC_ALL=C")
	if in != nil {
		cmd.Stdin = in
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := fork.Run(cmd)
	switch said := strings.TrimSpace(errs.String()); {
	case errors.Is(err, exec.ErrNotFound):
		return "", refuse.Cannotf("install Slurm's commands (Debian: slurm-client), or use a login host of the pool", "%s is not on this host", program)
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case err != nil && said != "":
		return out.String(), fmt.Errorf("%s", said)
	case err != nil:
		return out.String(), fmt.Errorf("%s: %w", program, err)
	}
	return out.String(), nil
}
