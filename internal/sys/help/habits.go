package help

import (
	"strings"

	"github.com/spf13/cobra"
)

// Habits maps commands of other engines (podman, docker, incus, lxc) to the way of Berth. A key is the command's path
// below berth. TestHabits checks that each "berth …" in an answer is a valid command line.
func Habits() map[string]string {
	const (
		lists   = "berth ls lists nodes"
		shows   = "berth show NAME shows a node, berth image ls the images, berth doctor the host"
		makes   = "berth apply -f FILE makes nodes from a spec and starts them, berth run makes a throw-away one"
		removes = "berth rm NAME removes a node, berth image rm NAME an image"
		pulls   = "berth image pull REGISTRY/REPOSITORY:TAG fetches an image"
		imports = pulls + "; berth image import ARCHIVE NAME takes what docker save, podman save or skopeo wrote"
		logins  = "podman login REGISTRY and docker login REGISTRY, as root, keep logins; berth image pull REGISTRY/REPOSITORY:TAG uses them"
		cleans  = "berth image prune removes what no image needs, berth image rm NAME an image, berth rm NAME a node"
		shell   = "berth exec -it NAME -- sh is a shell in a node"
		sets    = "berth set NAME KEY=VALUE changes a limit, live; berth apply -f FILE all that a spec says"
		nets    = "berth net export prints the nodes' names, MACs and addresses; which interfaces a node has stands in its spec, under network"
		again   = "berth restart NAME stops a node and starts it again"
		usage   = "berth top shows what nodes use now"
		copies  = "berth cp SRC NODE:PATH and berth cp NODE:PATH DST copy files; a folder of the host stands in the spec, under mounts"
		volumes = "folders of the host stand in the spec, under mounts; what a node wrote itself is kept until berth rm"
		host    = "berth doctor tells about the host, berth --version about berth"
		images  = "berth image ls lists images"
		freezes = "berth pause NAME holds a node where it is, berth unpause NAME lets it go on"
		none    = "a spec and an image make a node again: berth plan -f FILE shows how"
		several = "a spec may hold several nodes, parted by ---: berth apply -f FILE"
		pushes  = "images go to a registry by podman push or skopeo copy; berth export -o FILE NODE writes a node's root as a tar; " + copies
		saves   = "berth export -o FILE NODE writes a node's root as a tar; an archive that was imported is still yours"
		kubes   = several + "; of Kubernetes it reads nothing"
		checks  = "berth show NAME tells what the checks of a node found; the keeper runs what its spec has under health"
		secrets = "berth apply -f FILE takes a file of variables from the spec, under env_from"
		starts  = "berth start --autostart starts nodes as a boot does: those whose spec says autostart: true"
		drains  = "berth host drain HOST keeps new nodes from a host, berth host undrain HOST lets it take them again"
		ports   = "berth ls lists published ports; berth run -p HOST:NODE publishes them"
	)
	return map[string]string{
		"ps": lists, "list": lists, "container": lists, "containers": lists, "vm": lists, "pod": lists, "status": lists,
		"inspect": shows, "info": host, "version": host, "system": host + "; " + cleans, "cluster": host, "drain": drains, "undrain": drains, "cordon": drains, "uncordon": drains,
		"create": makes, "launch": makes, "init": makes, "new": makes, "up": makes,
		"delete": removes, "del": removes, "remove": removes, "destroy": removes, "prune": cleans, "down": removes, "purge": removes,
		"reboot":  again,
		"attach":  "berth logs -f NAME shows what process 1 writes; " + shell,
		"console": shell, "shell": shell, "enter": shell, "login": logins + "; " + shell, "ssh": shell, "execute": shell,
		"stats": usage, "monitor": usage, "port": ports, "network": nets, "networks": nets,
		"copy": copies, "file": copies, "push": pushes,
		"volume": volumes, "volumes": volumes, "mount": volumes, "storage": volumes,
		"pull": pulls, "search": "podman search looks through registries; " + pulls, "build": "images are built by podman build or buildah; " + imports, "load": imports, "import": imports, "save": saves,
		"tag": "berth image pull REGISTRY/REPOSITORY:TAG --name NAME stores an image under a name of yours", "history": images, "manifest": images, "artifact": images,
		"play": kubes, "kube": kubes, "generate": starts, "quadlet": starts, "healthcheck": checks, "secret": secrets,
		"registry": imports, "logout": logins,
		"images": images, "rmi": "berth image rm NAME removes an image",
		"update": sets, "config": sets, "edit": sets, "profile": sets, "limit": sets,
		"freeze": freezes, "unfreeze": freezes, "resume": freezes, "suspend": freezes,
		"commit": none, "snapshot": none, "checkpoint": none, "restore": none, "publish": none, "rename": none, "move": none, "migrate": none,
		"compose": several, "stack": several, "log": "berth logs NAME prints what a node wrote", "diff": "berth plan -f FILE shows what would change",
		"run-once": makes, "device": "berth set NAME devices+=PATH gives a node a device",
		"image list": images, "image inspect": "berth image ls --json tells all about the images", "image show": "berth image ls --json tells all about the images",
		"image load": imports, "image add": imports, "image copy": imports,
		"image save": "an archive that was imported is still yours; berth image ls lists what is stored", "image push": "berth image serve gives the images to other hosts", "image tag": "berth image import ARCHIVE NAME stores an image under another name; its layers are kept once",
		"image delete": "berth image rm NAME removes an image", "image remove": "berth image rm NAME removes an image",
		"net list": nets, "net ls": nets, "net create": nets, "net inspect": nets,
	}
}

// FlagHabits maps flags of other engines to the way of Berth, by command, then by flag.
func FlagHabits() map[string]map[string]string {
	return map[string]map[string]string{
		"run": {
			"volume": "a folder is given by --mount SOURCE:TARGET[:ro]", "v": "a folder is given by --mount SOURCE:TARGET[:ro]",
			"restart": "a restart policy stands in a spec, under restart: berth apply -f FILE", "pull": "berth image pull REF fetches an image anew",
			"read-only": "the image is never written to; a folder is read-only by --mount SOURCE:TARGET:ro",
			"ulimit":    "limits of processes stand in a spec, under rlimits", "shm-size": "a larger one is given by --tmpfs /dev/shm:size=SIZE",
			"dns": "a node asks the resolvers of the host", "add-host": "nodes of --network nat know each other by name",
			"ip": "an address is given with the network: --network bridge:br0,192.0.2.10/24", "mac-address": "a MAC stands in a spec, under network",
			"userns": "every node has a user namespace of its own", "init": "leave it out: process 1 is the command", "cap-add": "a node's capabilities are fixed", "cap-drop": "a node's capabilities are fixed",
			"device-read-bps": "limits of disks stand in a spec, under io", "device-write-bps": "limits of disks stand in a spec, under io",
			"health-cmd": "a check stands in a spec, under health", "security-opt": "every node has a filter of system calls and no new privileges; see no_new_privileges in the spec",
			"pids-limit": "did you mean --pids?", "log-driver": "leave it out: berth logs prints what a node wrote", "gpus": "a device is given by --device PATH", "pod": "nodes of --network nat share a network and know each other by name",
			"m":          "the most memory is given by --memory SIZE",
			"privileged": "there are no privileged nodes; --device PATH gives a device", "net": "did you mean --network?",
			"entrypoint": "leave it out: the words after -- are the whole command",
		},
		"exec":    {"detach": "end the command with & in a shell: -- sh -c 'CMD &'", "d": "end the command with & in a shell: -- sh -c 'CMD &'"},
		"logs":    {"tail": "the last lines are asked for by --lines N", "names": "leave it out: the lines of several nodes begin with their names"},
		"kill":    {"all": "name the nodes; berth ls lists them", "a": "name the nodes; berth ls lists them"},
		"wait":    {"condition": "leave it out: berth wait waits for the end of process 1", "interval": "leave it out: berth wait is woken by the end", "i": "leave it out: berth wait is woken by the end"},
		"events":  {"format": "--json prints an object a line", "filter": "name the nodes"},
		"restart": {"time": "the time to wait is given by --grace TIME", "t": "the time to wait is given by --grace TIME", "all": "name the nodes; berth ls lists them", "a": "name the nodes; berth ls lists them"},
		"ls":      {"all": "leave it out: stopped nodes are listed too", "a": "leave it out: stopped nodes are listed too", "quiet": "names for a program are in berth ls --json", "q": "names for a program are in berth ls --json"},
		"stop":    {"time": "the time to wait is given by --grace TIME", "t": "the time to wait is given by --grace TIME", "force": "--grace 0s kills at once", "f": "--grace 0s kills at once"},
		"rm":      {"volumes": "leave it out: what a node wrote is removed with it", "v": "leave it out: what a node wrote is removed with it", "all": "name the nodes; berth ls lists them", "a": "name the nodes; berth ls lists them"},
	}
}

// Path returns a command's path without the program's name.
func Path(c *cobra.Command) string {
	_, path, _ := strings.Cut(c.CommandPath(), " ")
	return path
}
