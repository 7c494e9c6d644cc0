package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"berth/internal/cli/images"
	"berth/internal/image"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
)

// runFlags are the flags of berth run that stand for keys of a spec.
type runFlags struct {
	image, name, hostname, cpu, cpuset, memory, network string
	pids                                                int
	files, mounts, devices, publish                     []string
	machine                                             string
	noUserNS                                            bool
	dashed                                              bool // -- stands before the command
	insideFlags
	lifeFlags
}

func (a *app) runCmd() *cobra.Command {
	var f runFlags
	var tty, in, detach, trust bool
	rm := true
	c := &cobra.Command{
		Use: "run [flags] [-- CMD ARG…]", Short: "run a command in a throw-away node",
		Long: `Run a command in a node of its own, in the foreground, and remove the node when
it ends. Standard input, output and error are passed on through pipes. Ctrl-C
asks the command to end; a second one kills it. With -t it gets a terminal: then
Ctrl-C goes to the command alone, and one that runs as process 1 without a
handler, as sleep does, never sees it; a shell does. If berth run itself is
killed, its node ends too. With -d the node runs on its own, and its name is
printed. With --rm=false it stays when its command has ended, as stopped, with
what it wrote, until berth rm. The exit code is the command's; 125 if Berth
failed, 126 if the command could not be run, 127 if it was not found.`,
		Example: `  berth run --image host -- hostname
  berth run --image host --cpu 0.5 --memory 256MiB -- stress-ng --cpu 2 -t 10
  berth run --image oci:busybox -it -- sh
  berth run -d --name web --image oci:nginx --network nat -p 8080:80
  berth run --image file:a.erofs --machine kernel=/boot/vmlinuz -- uname -r
  berth run -f node.yaml`,
		Args:        cobra.ArbitraryArgs,
		Annotations: map[string]string{"passes-exit-code": "yes"},
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("pids") && f.pids < 1 {
				return refuse.Invalidf("--pids: %d is not allowed: 1 or more", f.pids)
			}
			if err := checkDetach(detach, tty, cmd.Flags().Changed("rm") && rm); err != nil {
				return err
			}
			b, err := a.openToStart()
			if err != nil {
				return err
			}
			f.dashed = cmd.ArgsLenAtDash() >= 0
			n, err := a.nodeOf(cmd.Context(), &f, command(args))
			if err == nil && trust {
				err = images.TrustAll(cmd.Context(), image.Open(a.layout()), n)
			}
			if err != nil {
				return err
			}
			if detach {
				if err := b.Create(cmd.Context(), n); err != nil {
					return err
				}
				fmt.Fprintln(a.Out, n.Name)
				return a.toBoot([]*vnode.Node{n})
			}
			streams, err := a.runIO(tty)
			if err != nil {
				return err
			}
			if streams.Keep = !rm; streams.Keep {
				if err := a.toBoot([]*vnode.Node{n}); err != nil {
					return err
				}
			}
			a.code, err = b.Run(cmd.Context(), n, streams)
			return err
		},
	}
	fl := c.Flags()
	fl.SetInterspersed(false)
	fl.StringArrayVarP(&f.files, "file", "f", nil, "take the node from this `SPEC`; other flags override it")
	fl.StringVar(&f.image, "image", "", "its root, an `IMAGE`: host, oci:NAME, docker://REF, tar:FILE, oci-layout:DIR, dir:PATH, file:PATH")
	images.TrustFlag(c, &trust)
	fl.StringVar(&f.name, "name", "", "its `NAME` (default: run- and a number)")
	fl.StringVar(&f.hostname, "hostname", "", "host `NAME` inside (default: its name)")
	fl.StringVar(&f.cpu, "cpu", "", "most CPU, in `CPUS`: 1.5")
	fl.StringVar(&f.cpuset, "cpuset", "", "the `CPUS` it may run on: 0-1")
	fl.StringVar(&f.memory, "memory", "", "most memory, a `SIZE`: 512MiB")
	fl.IntVar(&f.pids, "pids", 0, "at most `N` processes and threads")
	fl.StringVar(&f.network, "network", "", "a `NETWORK`, MODE[:PARENT][,ADDRESS…][,dhcp]: none, bridge, nat, macvlan:eth0,192.0.2.10/24, macvlan:eth0,dhcp …")
	fl.StringVar(&f.machine, "machine", "", "a virtual machine, of `PARTS` with commas between: kernel=PATH cpus=N memory=SIZE accel=WORD; it writes to its memory")
	fl.StringArrayVarP(&f.publish, "publish", "p", nil, "ports of the host that lead to the node, `PORTS`: [ADDRESS:]HOST:NODE[/udp], by --network nat")
	fl.StringArrayVar(&f.mounts, "mount", nil, "a folder or file of the host inside, a `MOUNT`: SOURCE:TARGET[:ro]")
	fl.StringArrayVar(&f.devices, "device", nil, "a `DEVICE` of the host: PATH[:PATH INSIDE][:ACCESS][:unsafe]")
	fl.BoolVar(&f.noUserNS, "no-user-namespace", false, "weaker: root inside is root outside, with few capabilities")
	f.insideFlags.add(fl)
	f.lifeFlags.add(fl)
	fl.BoolVarP(&detach, "detach", "d", false, "let it run on its own and print its name; output goes to berth logs")
	fl.BoolVar(&rm, "rm", true, "remove the node when its command ends; --rm=false keeps it")
	terminalFlags(fl, &tty, &in)
	// These fail only for unknown flags.
	_ = c.MarkFlagFilename("file", "yaml", "yml")
	_ = c.RegisterFlagCompletionFunc("image", a.imageRefs)
	return c
}

// checkDetach refuses flags that do not go with -d.
func checkDetach(detach, tty, rm bool) error {
	switch {
	case detach && tty:
		return refuse.Invalidf("-d and -t: nobody is at the terminal of a node that runs on its own; berth exec -it NAME gives one later")
	case detach && rm:
		return refuse.Invalidf("-d and --rm: a node that runs on its own stays until berth rm NAME")
	}
	return nil
}

// nodeOf makes the node that the flags and arguments describe.
func (a *app) nodeOf(ctx context.Context, f *runFlags, args []string) (*vnode.Node, error) {
	n := &vnode.Node{}
	var nodes []*vnode.Node
	for _, file := range f.files {
		some, err := a.readSpecs(ctx, file)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, some...)
	}
	switch {
	case len(nodes) == 1:
		n = nodes[0]
	case len(f.files) > 0:
		return nil, refuse.Invalidf("%s holds %d nodes; run takes one", strings.Join(f.files, " with "), len(nodes))
	}
	if err := a.imageFlag(ctx, f, n, args); err != nil {
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
	if f.machine != "" {
		if err := ontoMachine(n, f.machine); err != nil {
			return err
		}
	}
	if f.network != "" {
		n.Network = []vnode.Network{vnode.ParseNetwork(f.network)}
	}
	if err := f.ontoPorts(n); err != nil {
		return err
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
	return errors.Join(f.insideFlags.onto(n), f.lifeFlags.onto(n))
}

// ontoMachine makes the node a machine of these parts: kernel=PATH,cpus=N,memory=SIZE,accel=WORD. A comma ends a part.
func ontoMachine(n *vnode.Node, parts string) error {
	n.Kind = vnode.MachineKind
	if n.Delta.In == "" {
		n.Delta.In = vnode.InMemory
	}
	return machineParts(&n.Machine, parts, nil)
}

// machineParts reads what a machine is made of from the flag --machine: NAME=VALUE with commas between, which end a part. own are parts,
// paths, that its caller has beside these, by name; nil: there are none. Paths become absolute. The rest is checked by Validate.
func machineParts(m *vnode.Machine, parts string, own map[string]*string) error {
	for part := range strings.SplitSeq(parts, ",") {
		name, value, _ := strings.Cut(part, "=")
		var err error
		switch {
		case value == "":
			err = notMachinePart(part, own)
		case name == "kernel":
			m.Kernel, err = filepath.Abs(value)
		case name == "cpus":
			m.CPUs, err = strconv.Atoi(value)
		case name == "memory":
			m.Memory, err = vnode.ParseBytes(value)
		case name == "accel":
			m.Accel = value
		case own[name] != nil:
			*own[name], err = filepath.Abs(value)
		default:
			err = notMachinePart(part, own)
		}
		if err != nil {
			return refuse.Invalidf("--machine %s: %w", parts, err)
		}
	}
	return nil
}

func notMachinePart(part string, own map[string]*string) error {
	allowed := "kernel=PATH, cpus=N, memory=SIZE or accel=auto"
	for _, name := range slices.Sorted(maps.Keys(own)) {
		allowed = name + "=PATH, " + allowed
	}
	return fmt.Errorf("%q is not allowed: %s", part, allowed)
}

// ontoPorts adds the published ports to the network of mode nat, which they make if the node has no network.
func (f *runFlags) ontoPorts(n *vnode.Node) error {
	if len(f.publish) == 0 {
		return nil
	}
	if len(n.Network) == 0 {
		n.Network = []vnode.Network{{Mode: vnode.NAT}}
	}
	i := slices.IndexFunc(n.Network, func(w vnode.Network) bool { return w.Mode == vnode.NAT })
	if i < 0 {
		return refuse.Invalidf("--publish: only a network of mode nat publishes ports: --network nat")
	}
	n.Network[i].Ports = append(n.Network[i].Ports, f.publish...)
	return nil
}
