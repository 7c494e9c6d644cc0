package tree

import (
	"slices"
	"strings"
	"sync"
)

// room is a folder below internal/ with packages that belong together.
type room struct {
	name  string
	is    string // what docs/ARCHITECTURE.md says of it
	uses  string // the rooms whose packages it may import, beside those that are everybody's
	order string // its packages, a row each, from the top: a package may import those of lower rows; "." is the room's own
}

// rooms lists the rooms from top to bottom. A room uses only rooms below it.
var rooms = []room{
	{"cli", cli, "bench site node runner network image storage", `
		.
		instance pools sync
		act images share site
		show screen
	`},
	{"bench", "What a node costs beside the bare host: experiments, their arms (what is compared), statistics, reports; and what `berth doctor --calibrate` measures (`model`).", "node network image storage", `
		commands
		report
		plot
		. suspects model
		syncbed
		bed nodes
		published starts wire
		side
		result fio
		stat
	`},
	{"site", site, "node runner limit network image storage", `
		agent sitecli synccli
		slurm/power slurm/reconcile
		api/server api/client hostapi
		api iosync slurm/instance slurm/slurmconf slurm/wish metrics
		claims iosync/simulate
		certs audit agentconf slurm/settings slurm/control store/embedded
		store/etcd store/storetest
		store iosync/place iosync/probe iosync/allot intercept/preload intercept/network intercept/gate intercept/instances
		iosync/want
		slurm/hostlist
		iosync/share upload listen
	`},
	{"node", "A node's life: the plan, the steps, the keeper, what is kept of a node and what happened to it. Commands and the agent ask package `node`. `protect` is for services that are no nodes.", "runner limit network image storage", `
		autostart
		top
		. protect
		rescue watch
		records
		keeper inspect health
		plan foreground
		mechanisms
		names
		history
		events
		nodelog
	`},
	{"runner", "What runs a node's first process.", "storage", `
		choose runnertest
		oci machine
		machine/guest
		. machine/wire
		first streams
	`},
	{"limit", "What a node may use of the host's CPUs, memory, disks and devices, and its kernel parameters. Limits of interfaces are in `network/shape`, sizes of folders in `sys/quota`, the kinds of limits in `sys/proof`.", "storage", `
		cgroup weight devgroup rlimit sysctl device
	`},
	{"network", "A node's interfaces, addresses and ports, and how fast they are.", "", `
		link netserve
		nat
		address
		sriov shape antispoof
		dhcp
	`},
	{"image", "What a node's root is made of, and where it comes from. `registry` is the program `berth-pull`, `serve` is `berth-registry`.", "storage", `
		serve
		. imagetest registry debian
		pull users inflate media
	`},
	{"storage", "The file systems of a node: mounts and the gateways to them, scratch volumes, packed images, whose ids its files have, how files get in and out; and `sftpserve`, which a file server runs.", "", `
		siteusers
		gateway/gatewaytest
		gateway ids sftpserve copier scratch
		mounts
		portblock
		packed
	`},
	{"host", "The host: its facts and checks, groups of processes, disks, interfaces, units of systemd, and the site that it belongs to.", "", `
		systemd
		membership
		counters
		group group/grouptest
		netif
		block
		.
	`},
	{"spec", "What users ask for: nodes and their YAML, templates; and who may ask for what (`roles`).", "", `
		template
		.
		envfile
		vnode roles
	`},
	{"sys", "What every room is built of: steps and journals, errors and help for people, files, locks, processes; and words that several rooms share, as the kinds of limits (`proof`).", "", `
		help
		step
		layout jsonfile space file sibling treetar treetar/treetest
		bpf/compiled inherit
		refuse bpf thread quota purge suggest proc inroot lock fault fork proof mac text version seccomp
	`},
}

// cli is what the map says of room cli.
const cli = "The program `berth`: its commands, and what users see of nodes. `root.go` lists all commands. `berth bench` is `bench/commands`; " +
	"`berth certs`, `host`, `template` and `slurm` are `site/sitecli`."

// site is what the map says of room site.
const site = "More than one host: the agent `berthd` ([agent](agent.md)) and its API ([API](api.md)), the cluster state ([cluster state](cluster-state.md)), " +
	"who may what ([access](access.md)), Prometheus ([metrics](metrics.md)), VNode Sync ([sync](sync.md): `iosync`, and `intercept` for file servers of others), Slurm ([slurm](slurm.md), [instance](instance.md)). " +
	"`sitecli` is the program `berth-site`, `synccli` is `berth-sync`."

// everybodys lists the rooms that each room above them may use.
var everybodys = []string{"host", "spec", "sys"}

// passages lists what the rooms of mechanisms may import of each other: a mechanism knows no other.
var passages = map[string][]string{
	"runner":  {"storage/mounts", "storage/ids", "storage/packed"},
	"limit":   {"storage/mounts"},
	"network": {},
	"image":   {"storage/packed"},
	"storage": {},
}

// position is a package's place: the number of its room, and of its row there.
type position struct{ room, row int }

// positions returns all places, by the full names of packages, as "node/keeper".
var positions = sync.OnceValue(func() map[string]position {
	all := map[string]position{}
	for i, r := range rooms {
		for j, row := range r.rows() {
			for _, pkg := range row {
				all[pkg] = position{i, j}
			}
		}
	}
	return all
})

// rows returns the full names of a room's packages, row by row.
func (r room) rows() (rows [][]string) {
	for line := range strings.Lines(strings.TrimSpace(r.order)) {
		var row []string
		for name := range strings.FieldsSeq(line) {
			row = append(row, strings.TrimSuffix(r.name+"/"+name, "/."))
		}
		rows = append(rows, row)
	}
	return rows
}

// placed reports whether a package has its place.
func placed(pkg string) bool {
	_, yes := positions()[pkg]
	return yes
}

// inRoom returns the room that a package, which is placed, lies in.
func inRoom(pkg string) room { return rooms[positions()[pkg].room] }

// mayUse reports whether a package may import another one by the order of rooms and rows.
func mayUse(pkg, target string) bool {
	at, below := positions()[pkg], positions()[target]
	from, to := inRoom(pkg), inRoom(target)
	switch {
	case !placed(target) || at.room > below.room:
		return false
	case at.room == below.room:
		return at.row < below.row
	case slices.Contains(everybodys, to.name):
		return true
	}
	if known, mechanism := passages[from.name]; mechanism {
		return slices.Contains(known, target)
	}
	return slices.Contains(strings.Fields(from.uses), to.name)
}
