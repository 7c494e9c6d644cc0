package cli

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"berth/internal/node"
	"berth/internal/refuse"
	"berth/internal/vnode"
)

// runFlags are the flags of berth run that stand for keys of a spec.
type runFlags struct {
	file, image, name, hostname, cpu, cpuset, memory, network string
	pids                                                      int
	mounts, devices                                           []string
	noUserNS                                                  bool
}

func (a *app) runCmd() *cobra.Command {
	var f runFlags
	var tty, in bool
	c := &cobra.Command{
		Use: "run [flags] [-- CMD ARG…]", Short: "run a command in a throw-away node",
		Long: `Run a command in a node of its own, in the foreground, and remove the node when
it ends. Standard input, output and error are passed on through pipes. Ctrl-C
asks the command to end; a second one kills it. With -t it gets a terminal: then
Ctrl-C goes to the command alone, and one that runs as process 1 without a
handler, as sleep does, never sees it; a shell does. If berth run itself is
killed, its node ends too. The exit code is the command's; 125 if Berth failed,
126 if the command could not be run, 127 if it was not found.`,
		Example: `  berth run --image host -- hostname
  berth run --image host --cpu 0.5 --memory 256MiB -- stress-ng --cpu 2 -t 10
  berth run --image oci:busybox -it -- sh
  berth run -f node.yaml`,
		Args:        cobra.ArbitraryArgs,
		Annotations: map[string]string{"passes-exit-code": "yes"},
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("pids") && f.pids < 1 {
				return refuse.Invalidf("--pids: %d is not allowed: 1 or more", f.pids)
			}
			n, err := a.nodeOf(cmd.Context(), &f, command(args))
			if err != nil {
				return err
			}
			b, err := a.open()
			if err != nil {
				return err
			}
			if tty && !term.IsTerminal(int(a.In.Fd())) {
				return errNoTerminal()
			}
			a.code, err = b.Run(cmd.Context(), n, node.RunIO{In: a.In, Out: os.Stdout, Err: os.Stderr, TTY: tty})
			return err
		},
	}
	fl := c.Flags()
	fl.SetInterspersed(false)
	fl.StringVarP(&f.file, "file", "f", "", "take the node from this `SPEC`; other flags override it")
	fl.StringVar(&f.image, "image", "", "its root, an `IMAGE`: host, oci:NAME, oci-layout:DIR, dir:PATH")
	fl.StringVar(&f.name, "name", "", "its `NAME` (default: run- and a number)")
	fl.StringVar(&f.hostname, "hostname", "", "host `NAME` inside (default: its name)")
	fl.StringVar(&f.cpu, "cpu", "", "most CPU, in `CPUS`: 1.5")
	fl.StringVar(&f.cpuset, "cpuset", "", "the `CPUS` it may run on: 0-1")
	fl.StringVar(&f.memory, "memory", "", "most memory, a `SIZE`: 512MiB")
	fl.IntVar(&f.pids, "pids", 0, "at most `N` processes and threads")
	fl.StringVar(&f.network, "network", "", "a `NETWORK`, MODE[:PARENT][,ADDRESS…][,dhcp]: none, bridge, macvlan:eth0,192.0.2.10/24, macvlan:eth0,dhcp …")
	fl.StringArrayVar(&f.mounts, "mount", nil, "a folder or file of the host inside, a `MOUNT`: SOURCE:TARGET[:ro]")
	fl.StringArrayVar(&f.devices, "device", nil, "a `DEVICE` of the host: PATH[:PATH INSIDE][:ACCESS][:unsafe]")
	fl.BoolVar(&f.noUserNS, "no-user-namespace", false, "weaker: root inside is root outside, with few capabilities")
	terminalFlags(fl, &tty, &in)
	// These fail only for unknown flags.
	_ = c.MarkFlagFilename("file", "yaml", "yml")
	_ = c.RegisterFlagCompletionFunc("image", a.imageRefs)
	return c
}

// nodeOf makes the node that the flags and arguments describe.
func (a *app) nodeOf(ctx context.Context, f *runFlags, args []string) (*vnode.Node, error) {
	n := &vnode.Node{}
	if f.file != "" {
		nodes, err := a.readSpecs(ctx, f.file)
		if err != nil {
			return nil, err
		}
		if len(nodes) != 1 {
			return nil, refuse.Invalidf("%s holds %d nodes; run takes one", f.file, len(nodes))
		}
		n = nodes[0]
	}
	if err := a.imageFlag(f, n, args); err != nil {
		return nil, err
	}
	if err := f.onto(n); err != nil {
		return nil, err
	}
	if len(args) > 0 {
		n.Command = args
	}
	if n.Name == "" {
		n.Name = "run-" + strconv.Itoa(os.Getpid())
	}
	vnode.Defaults(n)
	return n, valid(n)
}

// valid returns an error that names all faults of a node that flags describe.
func valid(n *vnode.Node) error {
	var all []string
	for _, p := range vnode.Validate(n) {
		if p.Field == "command" && len(n.Command) == 0 {
			return refuse.Invalidf("no command given: image host has none of its own; berth run --image host -- CMD")
		}
		all = append(all, flagOf(p.Field)+": "+p.Msg)
	}
	if len(all) > 0 {
		return refuse.Invalidf("%s", strings.Join(all, "\n"))
	}
	return nil
}

// flagOf returns the flag of berth run that sets a key of a spec: --network for network[0].address[0]. A key without a
// flag is returned as it is.
func flagOf(field string) string {
	top, _, _ := strings.Cut(field, ".")
	name, _, _ := strings.Cut(top, "[")
	flag := map[string]string{
		"network": "network", "mounts": "mount", "devices": "device", "name": "name", "hostname": "hostname", "pids": "pids",
		"cpu.max": "cpu", "cpu.set": "cpuset", "memory.max": "memory",
	}
	for _, key := range []string{field, name} {
		if flag[key] != "" {
			return "--" + flag[key]
		}
	}
	return field
}

func (f *runFlags) onto(n *vnode.Node) (err error) {
	if f.name != "" {
		n.Name = f.name
	}
	if f.hostname != "" {
		n.Hostname = f.hostname
	}
	for _, c := range []struct{ key, value string }{{"cpu.max", f.cpu}, {"cpu.set", f.cpuset}, {"memory.max", f.memory}} {
		if c.value == "" {
			continue
		}
		if err := vnode.Change(n, c.key, c.value); err != nil {
			return refuse.Invalidf("%w", err)
		}
	}
	if f.pids != 0 {
		n.PIDs = f.pids
	}
	if f.noUserNS {
		no := false
		n.UserNamespace = &no
	}
	if f.network != "" {
		n.Network = []vnode.Network{parseNetwork(f.network)}
	}
	for _, m := range f.mounts {
		mount, err := parseMount(m)
		if err != nil {
			return err
		}
		n.Mounts = append(n.Mounts, mount)
	}
	for _, text := range f.devices {
		d, err := vnode.ParseDevice(text)
		if err != nil {
			return refuse.Invalidf("--device %w", err)
		}
		n.Devices = append(n.Devices, d)
	}
	return nil
}

func parseNetwork(s string) vnode.Network {
	how, addr, _ := strings.Cut(s, ",")
	mode, parent, _ := strings.Cut(how, ":")
	nw := vnode.Network{Mode: vnode.Mode(mode), Parent: parent}
	if addr != "" {
		nw.Address = strings.Split(addr, ",")
	}
	nw.Address = slices.DeleteFunc(nw.Address, func(a string) bool {
		nw.DHCP = nw.DHCP || a == "dhcp"
		return a == "dhcp"
	})
	return nw
}

func parseMount(s string) (vnode.Mount, error) {
	parts := strings.Split(s, ":")
	if len(parts) < 2 || len(parts) > 3 || len(parts) == 3 && parts[2] != "ro" {
		return vnode.Mount{}, refuse.Invalidf("--mount %s: want SOURCE:TARGET or SOURCE:TARGET:ro", s)
	}
	return vnode.Mount{Source: parts[0], Target: parts[1], ReadOnly: len(parts) == 3}, nil
}

func (a *app) execCmd() *cobra.Command {
	var tty, in bool
	c := &cobra.Command{
		Use: "exec [-it] NAME -- CMD ARG…", DisableFlagsInUseLine: true, Short: "run one more command in a running node",
		Long: `Run one more command in a running node, with the same rights and limits as the
node's own. Standard input, output and error are passed on through pipes, or
with -t through a terminal of the node's own, and so are signals. If berth exec
itself is killed by SIGKILL, the command lives on: it reads no more, and what it
writes ends it. The exit code is the command's; 125 if Berth failed, 126 if the
command could not be run, 127 if it was not found.`,
		Example:           "  berth exec wn-001 -- ps\n  berth exec -it wn-001 -- sh",
		ValidArgsFunction: a.nodeNames(1),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 1 || len(command(args[1:])) == 0 {
				return fmt.Errorf("want NAME -- CMD ARG…")
			}
			return nil
		},
		Annotations: map[string]string{"passes-exit-code": "yes"},
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := a.open()
			if err != nil {
				return err
			}
			if tty && !term.IsTerminal(int(a.In.Fd())) {
				return errNoTerminal()
			}
			a.code, err = b.Exec(cmd.Context(), args[0], command(args[1:]), node.RunIO{In: a.In, Out: os.Stdout, Err: os.Stderr, TTY: tty})
			return err
		},
	}
	c.Flags().SetInterspersed(false)
	terminalFlags(c.Flags(), &tty, &in)
	return c
}

// terminalFlags gives run and exec the flags that users of other engines type: -i, -t and -it.
func terminalFlags(fl *pflag.FlagSet, tty, in *bool) {
	fl.BoolVarP(tty, "tty", "t", false, "give the command a terminal")
	fl.BoolVarP(in, "interactive", "i", false, "accepted for habit's sake: standard input is always passed on")
}

// errNoTerminal refuses -t if standard input is no terminal: the command's output would look different, and Ctrl-C would
// not reach the command.
func errNoTerminal() error {
	return refuse.Invalidf("-t: standard input is not a terminal; leave -t out")
}

// command drops a leading "--" from args.
func command(args []string) []string {
	if len(args) > 0 && args[0] == "--" {
		return args[1:]
	}
	return args
}
