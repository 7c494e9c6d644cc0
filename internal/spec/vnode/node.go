// Package vnode defines a virtual node: its types, units, defaults and validation, and which keys berth set changes (change.go).
// It uses the standard library only and does no I/O.
//
// The json tags are the keys of the spec. The doc tags are the descriptions in its JSON Schema. The allowed and range
// tags are the values that Validate and the schema accept.
package vnode

import (
	"maps"
	"slices"
	"strings"
)

// Node is a node as its user describes it (the spec). Zero values mean not set.
type Node struct {
	Name        string    `json:"name" doc:"name of the node: lower-case letters, digits and '-', at most 48, unique on the host"`
	Image       Image     `json:"image" doc:"the read-only root: host | oci:NAME | oci-layout:DIR | dir:PATH | file:PATH"`
	Hostname    string    `json:"hostname,omitempty" doc:"host name inside; default: the node's name"`
	Kind        Kind      `json:"kind,omitempty" doc:"container: it shares the host's kernel; machine: it has a kernel of its own, in an emulator; default container" allowed:"container|machine"`
	Machine     Machine   `json:"machine,omitzero" doc:"what a node of kind machine is made of"`
	Class       Class     `json:"class,omitempty" doc:"batch gives way to what else runs on the host, storage goes before it" allowed:"batch|storage"`
	Command     []string  `json:"command,omitempty" doc:"what runs as process 1; default: the image's own command; must be given with image host"`
	User        string    `json:"user,omitempty" doc:"whom process 1 and exec run as: USER or USER:GROUP, names or numbers of the image's own /etc/passwd and /etc/group; default: the image's own user, else root"`
	Env         Env       `json:"env,omitempty" doc:"variables of the environment, added to the image's own or replacing them, for example {LANG: C.UTF-8}"`
	EnvFrom     string    `json:"env_from,omitempty" doc:"a file of the host with more variables, one NAME=VALUE per line, for secrets: read at each start, root's alone, stored and shown nowhere"`
	Workdir     string    `json:"workdir,omitempty" doc:"the folder inside that process 1 and exec begin in; default: the image's own, else /"`
	Labels      Labels    `json:"labels,omitempty" doc:"words of your own by name, for berth ls --filter, for example {team: storage}"`
	Stop        Stop      `json:"stop,omitzero" doc:"how it is stopped"`
	Health      Health    `json:"health,omitzero" doc:"a check of the node, which the keeper runs in it"`
	Restart     Restart   `json:"restart,omitempty" doc:"what to do when process 1 ends" allowed:"never|on-failure|always"`
	Autostart   bool      `json:"autostart,omitempty" doc:"start at boot"`
	CPU         CPU       `json:"cpu,omitzero" doc:"CPU share and limit"`
	Memory      Memory    `json:"memory,omitzero" doc:"memory limits"`
	HugePages   HugePages `json:"hugepages,omitempty" doc:"limit of huge pages by page size, for example {2MiB: 512MiB}"`
	PIDs        int       `json:"pids,omitempty" doc:"most processes and threads; default 4096" range:"1..4194304"`
	OOMScoreAdj *int      `json:"oom_score_adj,omitempty" doc:"how readily the kernel kills its processes when the host lacks memory, -1000 (never) to 1000; default: batch 500, storage -500" range:"-1000..1000"`
	RLimits     RLimits   `json:"rlimits,omitempty" doc:"resource limits of processes, soft and hard, for example {nofile: 20000}"`
	IO          []IO      `json:"io,omitempty" doc:"block I/O limits, one entry a disk or shared file system"`
	Network     []Network `json:"network,omitempty" doc:"network interfaces; none: only loopback"`
	Devices     []Device  `json:"devices,omitempty" doc:"devices of the host that the node may use"`
	Mounts      []Mount   `json:"mounts,omitempty" doc:"file systems of the host seen inside, each by a gateway"`
	Tmpfs       []Tmpfs   `json:"tmpfs,omitempty" doc:"file systems in memory, empty at each start and counted as the node's memory"`
	Sysctls     SysctlMap `json:"sysctls,omitempty" doc:"kernel parameters of the node's own namespaces, for example {net.core.somaxconn: 1024}"`
	Scratch     []Scratch `json:"scratch,omitempty" doc:"local volumes made with the node and removed with it"`
	Delta       Delta     `json:"delta,omitzero" doc:"where the node's own writes to its root go"`

	Users []IDExtent `json:"users,omitempty" doc:"ids of a site's users that processes inside may have, beside the node's own 0 to 65535 or in place of some of them; of users and groups"`

	NoNewPrivileges *bool `json:"no_new_privileges,omitempty" doc:"false lets set-user-id programs such as sudo work inside; ls and show say so; needs a user namespace; true takes them from the users of an init system too; default: true for a command, false for an init system"`

	UserNamespace *bool `json:"user_namespace,omitempty" doc:"whether the node has ids of its own; false is weaker and shown"`
}

// UserNS reports whether the node gets a user namespace. It does unless its spec says no.
func (n *Node) UserNS() bool { return n.UserNamespace == nil || *n.UserNamespace }

// KeepsPrivileges reports whether the spec says no_new_privileges: true.
func (n *Node) KeepsPrivileges() bool { return n.NoNewPrivileges != nil && *n.NoNewPrivileges }

// NewPrivileges reports whether the spec asks for set-user-id programs to work inside.
func (n *Node) NewPrivileges() bool { return n.NoNewPrivileges != nil && !*n.NoNewPrivileges }

// Host returns the node's host name.
func (n *Node) Host() string {
	if n.Hostname != "" {
		return n.Hostname
	}
	return n.Name
}

// Class decides a node's priority when resources are short.
type Class string

// The classes.
const (
	Batch   Class = "batch"
	Storage Class = "storage"
)

// Restart says what to do when a node's process 1 ends.
type Restart string

// The restart policies. The zero value means never.
const (
	Never     Restart = "never"
	OnFailure Restart = "on-failure"
	Always    Restart = "always"
)

// CPU holds the CPU share and limit.
type CPU struct {
	Weight int    `json:"weight,omitempty" doc:"share under contention, 1..10000, 100 is normal" range:"1..10000"`
	Max    Cores  `json:"max,omitempty" doc:"most CPU time per time, in CPUs, for example 1.5"`
	Set    CPUSet `json:"set,omitempty" doc:"the CPUs it may run on, for example 0-1,4"`
	NUMA   *int   `json:"numa,omitempty" doc:"the NUMA node whose CPUs and memory it may use" range:"0..1023"`
	Idle   *bool  `json:"idle,omitempty" doc:"CPU time only where nobody else wants it; default: true for class batch"`
}

// Memory holds the memory limits in bytes.
type Memory struct {
	Max  Bytes  `json:"max,omitempty" doc:"hard limit: beyond it the node's processes are killed"`
	High Bytes  `json:"high,omitempty" doc:"above it the node is slowed and its memory reclaimed"`
	Low  Bytes  `json:"low,omitempty" doc:"protected from reclaim below this, as long as others have something to give"`
	Min  Bytes  `json:"min,omitempty" doc:"protected from reclaim below this, whatever happens: others are killed first"`
	Swap *Bytes `json:"swap,omitempty" doc:"most swap beside memory.max; 0: none"`
}

// Labels maps the names of labels to their values.
type Labels map[string]string

// SysctlMap maps kernel parameters of the node's own namespaces to their values.
type SysctlMap map[string]string

// HugePages maps a page size to the most bytes of such pages.
type HugePages map[Bytes]Bytes

// RLimits maps a limit's name in lower case (nofile, nproc, core …) to its value.
type RLimits map[string]uint64

// IO limits one disk, or one shared file system. Exactly one of Device, Path and Filesystem is given.
type IO struct {
	Name       string `json:"name" doc:"name of this entry, as in berth set io.NAME.read.rate"`
	Device     string `json:"device,omitempty" doc:"the disk or partition, best by /dev/disk/by-id"`
	Path       string `json:"path,omitempty" doc:"a folder or file: the device under it"`
	Filesystem string `json:"filesystem,omitempty" doc:"name of a shared file system whose servers hold the limit"`
	Weight     int    `json:"weight,omitempty" doc:"share under contention, 1..10000, 100 is normal" range:"1..10000"`
	Engine     Engine `json:"engine,omitempty" doc:"what honours the weight: Berth switches the disk to it while the node runs; default: what the disk has" allowed:"bfq|bfq-strict|iocost"`
	Model      string `json:"model,omitempty" doc:"what the disk can do, for engine iocost, as berth doctor --calibrate prints it: rbps=N rseqiops=N rrandiops=N wbps=N wseqiops=N wrandiops=N"`
	Read       IORate `json:"read,omitzero" doc:"limits of reads"`
	Write      IORate `json:"write,omitzero" doc:"limits of writes"`
	PerServer  bool   `json:"per_server,omitempty" doc:"with filesystem: each of its file servers allows the whole rate; default: all of them together do"`
}

// Engine is the mechanism that shares a disk by weight.
type Engine string

// The engines. The zero value means the one that the disk already has.
const (
	BFQ       Engine = "bfq"
	BFQStrict Engine = "bfq-strict" // BFQ with one request at a time in the disk
	IOCost    Engine = "iocost"
)

// Known reports whether e is one of the engines.
func (e Engine) Known() bool { return e.IsBFQ() || e == IOCost }

// IsBFQ reports whether the engine is the I/O scheduler BFQ, strict or not.
func (e Engine) IsBFQ() bool { return e == BFQ || e == BFQStrict }

// IORate limits one direction of a disk.
type IORate struct {
	Rate Rate `json:"rate,omitempty" doc:"most bytes per second, for example 200MB/s"`
	IOPS int  `json:"iops,omitempty" doc:"most operations per second" range:"1..4294967295"`
}

// Mode is a way to attach a network interface.
type Mode string

// The modes.
const (
	SRIOV   Mode = "sriov"
	Macvlan Mode = "macvlan"
	Bridge  Mode = "bridge"
	NAT     Mode = "nat"
	Phys    Mode = "phys"
	None    Mode = "none"
)

// Network is one network interface.
type Network struct {
	Name    string   `json:"name,omitempty" doc:"name of the interface inside; default: eth0, eth1 …"`
	Mode    Mode     `json:"mode,omitempty" doc:"how the interface reaches the network; default bridge" allowed:"sriov|macvlan|bridge|nat|phys|none"`
	Parent  string   `json:"parent,omitempty" doc:"the host's adapter or bridge; bridge without a parent: host-only; nat has none"`
	MAC     string   `json:"mac,omitempty" doc:"auto (derived from site id and name, always the same) | pool NAME | an address; default auto, phys: its own"`
	DHCP    bool     `json:"dhcp,omitempty" doc:"lease an IPv4 address, and the default route, from the network's DHCP server; not together with an IPv4 address or gateway"`
	Address []string `json:"address,omitempty" doc:"addresses with prefix length, for example 192.0.2.10/24"`

	Reserved bool `json:"reserved,omitempty" doc:"the network's admins keep its addresses for this node: a start does not ask whether somebody else has them, which takes 220 ms"`

	Gateway string   `json:"gateway,omitempty" doc:"default route"`
	Routes  []Route  `json:"routes,omitempty" doc:"more routes"`
	MTU     int      `json:"mtu,omitempty" doc:"bytes, 68..65535; default: the parent's" range:"68..65535"`
	VLAN    int      `json:"vlan,omitempty" doc:"1..4094, which the node neither sees nor chooses; sriov, macvlan, or a parent bridge that filters VLANs" range:"1..4094"`
	Rate    NetRate  `json:"rate,omitzero" doc:"limits at layer 2"`
	Ports   []string `json:"ports,omitempty" doc:"ports of the host that lead to the node, mode nat: [ADDRESS:]HOST:NODE[/udp], for example 8080:80 or 127.0.0.1:8000-8010:8000-8010/tcp"`

	Spoof bool `json:"spoof,omitempty" doc:"let it send from any address, answer DHCP and advertise routers; ls and show say so; default: only from its own MAC and addresses"`

	Priority Priority `json:"priority,omitempty" doc:"of what it sends, where it waits at the host's adapter; default: batch low, storage high" allowed:"low|normal|high"`
}

// Priority orders packets in a full queue of the host's adapter.
type Priority string

// The priorities. The zero value means the class's priority.
const (
	Low    Priority = "low"
	Normal Priority = "normal"
	High   Priority = "high"
)

// Route is a route to a prefix through a neighbour.
type Route struct {
	To  string `json:"to" doc:"prefix, for example 198.51.100.0/24"`
	Via string `json:"via" doc:"address of the neighbour"`
}

// NetRate limits the two directions of an interface, as seen from the node.
type NetRate struct {
	TX BitRate `json:"tx,omitempty" doc:"most bits per second that it sends, for example 1Gbit/s"`
	RX BitRate `json:"rx,omitempty" doc:"most bits per second that it receives"`
}

// Device is a device of the host. The spec gives its path alone, or these keys.
type Device struct {
	Path   string `json:"path" doc:"the device's path on the host; with * and ?: all that match when the node starts, at least one"`
	As     string `json:"as,omitempty" doc:"its path inside; default: the same"`
	Access string `json:"access,omitempty" doc:"letters of r (read), w (write), m (make nodes); default rw"`
	Unsafe bool   `json:"unsafe,omitempty" doc:"give it although no node should have it (the host's memory, a mounted disk); ls and show say so"`
}

// Mount makes a file system visible in the node: a folder, file or socket of the host, or an export of a file server.
type Mount struct {
	Source   string  `json:"source" doc:"path on the host; for gateway nfs, sshfs and sshfs-direct HOST:/PATH, what a file server exports"`
	Target   string  `json:"target" doc:"path inside"`
	Gateway  string  `json:"gateway,omitempty" doc:"how it gets in; default bind" allowed:"bind|sshfs|sshfs-direct|nfs|virtiofs"`
	Via      string  `json:"via,omitempty" doc:"whose network a gateway to a file server uses: node (the node's own), or host (one mount for all nodes with this source); default node" allowed:"node|host"`
	Options  Options `json:"options,omitempty" doc:"options of the gateway, for example {vers: 4.2}; bind has none"`
	ReadOnly bool    `json:"read_only,omitempty" doc:"no writes through it"`
	Map      string  `json:"map,omitempty" doc:"idmapped: the node's ids are written as the same ids on the host's disk; identity: ids as they are (host files belong to nobody inside). Default idmapped; from a file server identity" allowed:"idmapped|identity"`

	NosuidSource bool `json:"nosuid_source,omitempty" doc:"refuse it unless set-user-id programs and file capabilities that the node leaves there are out of the reach of the host's users"`
}

// The gateways: the ways by which a node reaches a file system. The zero value means bind.
const (
	BindGateway        = "bind"         // a bind mount of the host's folder
	SSHFSGateway       = "sshfs"        // a FUSE mount over SSH
	SSHFSDirectGateway = "sshfs-direct" // a FUSE mount over a plain socket to an SFTP server
	NFSGateway         = "nfs"          // the kernel's NFS client
	VirtioFSGateway    = "virtiofs"     // a folder of the host for a virtual machine
)

// The networks through which a gateway reaches a file server.
const (
	ViaNode = "node"
	ViaHost = "host"
)

// The ways a mount maps ids.
const (
	Idmapped = "idmapped"
	Identity = "identity"
)

// Options are the options of a gateway by their names. Their values are text as the spec has it.
type Options map[string]string

// String returns the options in the order of their names: "hard=true,vers=4.2".
func (o Options) String() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(o)) {
		all = append(all, name+"="+o[name])
	}
	return strings.Join(all, ",")
}

// Remote reports whether the mount's gateway reaches a file server, so that its source is HOST:/PATH.
func (m *Mount) Remote() bool {
	return slices.Contains([]string{SSHFSGateway, SSHFSDirectGateway, NFSGateway}, m.Gateway)
}

// Scratch is a local volume. It is made when the node is made and removed with it.
type Scratch struct {
	Target string `json:"target" doc:"path inside"`
	Size   Bytes  `json:"size" doc:"most bytes of it"`
	Pool   string `json:"pool,omitempty" doc:"the pool that it is made in: see berth pool ls; default: the pool named default"`
	FS     string `json:"fs,omitempty" doc:"its file system; default ext4, or in a folder with project quotas the folder's own" allowed:"ext4|xfs"`
	Mode   string `json:"mode,omitempty" doc:"mode of its folder in octal digits; default 1777"`
}

// DefaultPool is the pool of a scratch volume that names none.
const DefaultPool = "default"

// The file systems of scratch volumes.
const (
	Ext4 = "ext4"
	XFS  = "xfs"
)

// Delta configures where a node's writes to its root go.
type Delta struct {
	Size Bytes  `json:"size,omitempty" doc:"most bytes of it"`
	In   string `json:"in,omitempty" doc:"disk (kept until berth rm) or memory (gone when the node stops, counted as its memory)" allowed:"disk|memory"`
}

// Where a delta can be. The zero value means disk.
const (
	OnDisk   = "disk"
	InMemory = "memory"
)

// RLimitNames returns the limits of setrlimit(2) in lower case.
func RLimitNames() []string {
	return []string{
		"as", "core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile", "nproc",
		"rss", "rtprio", "rttime", "sigpending", "stack",
	}
}
