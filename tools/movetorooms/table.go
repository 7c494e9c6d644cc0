package main

import (
	"path"
	"strings"
)

// rooms are the folders directly below internal/, from top to bottom.
var rooms = strings.Fields("cli bench site node runner limit network storage image host spec sys")

// places says where each folder with packages goes, and the folders below it with it. What lies in one of the rooms already is left alone.
var places = map[string]string{
	"internal/cli": "internal/cli", "internal/show": "internal/cli/show", "internal/screen": "internal/cli/screen",

	"internal/bench": "internal/bench", "internal/cli/bench": "internal/bench/commands", "internal/report": "internal/bench/report",
	"internal/plot": "internal/bench/plot", "internal/fio": "internal/bench/fio", "internal/model": "internal/bench/model",

	"internal/sitecli": "internal/site/sitecli", "internal/synccli": "internal/site/synccli", "internal/agent": "internal/site/agent",
	"internal/agentconf": "internal/site/agentconf", "internal/metrics": "internal/site/metrics", "internal/api": "internal/site/api",
	"internal/hostapi": "internal/site/hostapi", "internal/hostnet": "internal/site/hostnet", "internal/store": "internal/site/store",
	"internal/claims": "internal/site/claims", "internal/certs": "internal/site/certs", "internal/audit": "internal/site/audit",
	"internal/sent": "internal/site/upload", "internal/slurm": "internal/site/slurm", "internal/iosync": "internal/site/iosync",
	"internal/intercept": "internal/site/intercept",

	"internal/node": "internal/node", "internal/plan": "internal/node/plan", "internal/parts": "internal/node/mechanisms",
	"internal/fate": "internal/node/history", "internal/roster": "internal/node/records", "internal/detail": "internal/node/inspect",
	"internal/rescue": "internal/node/rescue", "internal/events": "internal/node/events", "internal/keeper": "internal/node/keeper",
	"internal/health": "internal/node/health", "internal/autostart": "internal/node/autostart", "internal/protect": "internal/node/protect",
	"internal/top": "internal/node/top", "internal/foreground": "internal/node/foreground",
	"internal/nodelog": "internal/node/nodelog", "internal/names": "internal/node/names",

	"internal/runner": "internal/runner", "internal/oci": "internal/runner/oci", "internal/trial": "internal/runner/choose",
	"internal/relay": "internal/runner/streams",

	"internal/cgroup": "internal/limit/cgroup", "internal/standing": "internal/limit/weight", "internal/device": "internal/limit/device",
	"internal/devgroup": "internal/limit/devgroup", "internal/sysctl": "internal/limit/sysctl", "internal/rlimit": "internal/limit/rlimit",

	"internal/link": "internal/network/link", "internal/sriov": "internal/network/sriov", "internal/shape": "internal/network/shape",
	"internal/nat": "internal/network/nat", "internal/address": "internal/network/address", "internal/dhcp": "internal/network/dhcp",
	"internal/antispoof": "internal/network/antispoof", "internal/netserve": "internal/network/netserve", "internal/watch": "internal/node/watch",

	"internal/mounts": "internal/storage/mounts", "internal/scratch": "internal/storage/scratch", "internal/gateway": "internal/storage/gateway",
	"internal/fence": "internal/storage/portblock", "internal/sftpserve": "internal/storage/sftpserve", "internal/copier": "internal/storage/copier",
	"internal/ids": "internal/storage/ids", "internal/packed": "internal/storage/packed", "internal/siteusers": "internal/storage/siteusers",

	"internal/image": "internal/image", "internal/debian": "internal/image/debian",
	"internal/pull": "internal/image/pull", "internal/registry": "internal/image/registry", "internal/serve": "internal/image/serve",

	"internal/host": "internal/host", "internal/group": "internal/host/group", "internal/counters": "internal/host/counters",
	"internal/block": "internal/host/block", "internal/netif": "internal/host/netif", "internal/systemd": "internal/host/systemd",
	"internal/site": "internal/host/membership",

	"internal/spec": "internal/spec", "internal/vnode": "internal/spec/vnode", "internal/envfile": "internal/spec/envfile",
	"internal/users": "internal/image/users", "internal/template": "internal/spec/template", "internal/may": "internal/spec/roles",

	"internal/cli/help": "internal/sys/help", "internal/text": "internal/sys/text", "internal/nearest": "internal/sys/suggest",
	"internal/step": "internal/sys/step", "internal/layout": "internal/sys/layout", "internal/refuse": "internal/sys/refuse",
	"internal/limit": "internal/sys/proof", "internal/jsonfile": "internal/sys/jsonfile", "internal/file": "internal/sys/file",
	"internal/lock": "internal/sys/lock", "internal/proc": "internal/sys/proc", "internal/fork": "internal/sys/fork",
	"internal/thread": "internal/sys/thread", "internal/fault": "internal/sys/fault", "internal/bpf": "internal/sys/bpf",
	"internal/treetar": "internal/sys/treetar", "internal/quota": "internal/sys/quota", "internal/space": "internal/sys/space",
	"internal/purge": "internal/sys/purge", "internal/mac": "internal/sys/mac", "internal/sibling": "internal/sys/sibling",
	"internal/version": "internal/sys/version",

	"test/walk": "test/sample",
}

// variables and functions whose names packages get, by the files that use both, and what they are called after the move.
var clashes = map[string]map[string]string{
	"internal/spec/problem.go":   {"suggest": "hint"},
	"internal/spec/decode.go":    {"suggest": "hint"},
	"internal/spec/spec_test.go": {"suggest": "hint"},
	"internal/node/run.go":       {"streams": "stdio"},
}

// place returns where a folder goes, and whether the table says so. A folder that lies in a room already goes nowhere.
func place(dir string) (to string, known bool) {
	settled := map[string]bool{}
	for _, to := range places {
		settled[to] = true
	}
	for at := dir; at != "."; at = path.Dir(at) {
		to, moves := places[at]
		// internal/site and internal/limit were packages without any below them, and are rooms now.
		if moves && (at == dir || to == at || !isRoom(at)) {
			return to + strings.TrimPrefix(dir, at), true
		}
		if settled[at] || isRoom(at) {
			return dir, true
		}
	}
	return dir, false
}

func isRoom(dir string) bool {
	for _, room := range rooms {
		if dir == "internal/"+room {
			return true
		}
	}
	return false
}

// renamed returns the name of a package that gets another one, by the folder in which it was.
func renamed(dir string) (from, to string, yes bool) {
	place, moves := places[dir]
	from, to = path.Base(dir), path.Base(place)
	return from, to, moves && from != to
}
