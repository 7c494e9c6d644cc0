package cli

import (
	"os"
	"strings"

	"github.com/spf13/pflag"

	"berth/internal/spec/envfile"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
)

// insideFlags are the flags of run and exec that say as whom, where and with which variables a command runs.
type insideFlags struct {
	user, workdir string
	env, envFiles []string
}

func (f *insideFlags) add(fl *pflag.FlagSet) {
	fl.StringVarP(&f.user, "user", "u", "", "run as `USER`[:GROUP], names or numbers of the node's own")
	fl.StringVarP(&f.workdir, "workdir", "w", "", "begin in this `FOLDER` of the node")
	fl.StringArrayVarP(&f.env, "env", "e", nil, "a `VARIABLE` of its environment: NAME=VALUE, or NAME with the caller's value")
	fl.StringArrayVar(&f.envFiles, "env-file", nil, "variables from a `FILE`, one NAME=VALUE per line")
}

// variables returns what -e and --env-file give; -e goes first.
func (f *insideFlags) variables() (vnode.Env, error) {
	var all []string
	for _, file := range f.envFiles {
		some, err := envfile.Read(file, os.LookupEnv)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	for _, text := range f.env {
		one, err := envfile.Variable(text, os.LookupEnv)
		if err != nil {
			return nil, refuse.Invalidf("--env: %w", err)
		}
		all = append(all, one...)
	}
	env := vnode.Env{}
	for _, e := range all {
		name, value, _ := strings.Cut(e, "=")
		env[name] = value
	}
	return env, nil
}

// onto puts the flags into a spec.
func (f *insideFlags) onto(n *vnode.Node) error {
	if f.user != "" {
		n.User = f.user
	}
	if f.workdir != "" {
		n.Workdir = f.workdir
	}
	env, err := f.variables()
	for name, value := range env {
		if n.Env == nil {
			n.Env = vnode.Env{}
		}
		n.Env[name] = value
	}
	return err
}

// lifeFlags are the flags of run that stand for further keys of a spec.
type lifeFlags struct {
	stopSignal             string
	labels, tmpfs, sysctls []string
}

func (f *lifeFlags) add(fl *pflag.FlagSet) {
	fl.StringArrayVarP(&f.labels, "label", "l", nil, "a `LABEL` for berth ls --filter: NAME=VALUE")
	fl.StringArrayVar(&f.tmpfs, "tmpfs", nil, "a file system in memory, `TARGET`[:size=SIZE][,mode=MODE]")
	fl.StringArrayVar(&f.sysctls, "sysctl", nil, "a kernel `PARAMETER` of the node's own: NAME=VALUE")
	fl.StringVar(&f.stopSignal, "stop-signal", "", "the `SIGNAL` that asks its process 1 to end: QUIT")
}

// onto puts the flags into a spec.
func (f *lifeFlags) onto(n *vnode.Node) error {
	if f.stopSignal != "" {
		n.Stop.Signal = f.stopSignal
	}
	for _, text := range f.labels {
		name, value, _ := strings.Cut(text, "=") // a name alone is a label too
		if n.Labels == nil {
			n.Labels = vnode.Labels{}
		}
		n.Labels[name] = value
	}
	for _, text := range f.sysctls {
		name, value, ok := strings.Cut(text, "=")
		if !ok {
			return refuse.Invalidf("--sysctl %s: want NAME=VALUE", text)
		}
		if n.Sysctls == nil {
			n.Sysctls = vnode.SysctlMap{}
		}
		n.Sysctls[name] = value
	}
	for _, text := range f.tmpfs {
		t, err := parseTmpfs(text)
		if err != nil {
			return err
		}
		n.Tmpfs = append(n.Tmpfs, t)
	}
	return nil
}

func parseTmpfs(text string) (t vnode.Tmpfs, err error) {
	target, options, _ := strings.Cut(text, ":")
	t.Target = target
	for option := range strings.FieldsFuncSeq(options, func(c rune) bool { return c == ',' }) {
		name, value, _ := strings.Cut(option, "=")
		switch name {
		case "size":
			if t.Size, err = vnode.ParseBytes(value); err != nil {
				return t, refuse.Invalidf("--tmpfs %s: %w", text, err)
			}
		case "mode":
			t.Mode = value
		case "rw", "nosuid", "nodev": // it is so
		default:
			return t, refuse.Invalidf("--tmpfs %s: %q is not allowed: size=SIZE or mode=MODE", text, option)
		}
	}
	return t, nil
}

// check refuses flags that no spec could have.
func (f *insideFlags) check() error {
	n := &vnode.Node{Name: "n", Image: vnode.Image{Kind: vnode.HostImage}, Command: []string{"c"}, User: f.user, Workdir: f.workdir}
	return valid(n)
}
