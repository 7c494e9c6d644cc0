package lab_test

import "strings"

// powerAct is what a power cut comes into. Its scripts use the functions of testdata/power.sh.
type powerAct struct {
	name   string
	before string     // makes what it needs
	run    string     // the command, without berth
	inside [][]string // fault points: of each list a run takes one
	keeps  string     // prints what may not be lost once it has ended; "": what the node's program synced
	node   string     // whether the node is there after its end: "yes" or "no"
	during string     // and after a cut in the middle: "yes", "no" or "perhaps"; "": as after its end
	ended  string     // checks what must hold after its end
	either string     // and what must hold in any case
}

// does returns the script that runs the act to its end or to a fault point.
func (a powerAct) does(point string) string {
	if strings.HasPrefix(a.run, "!") {
		return strings.ReplaceAll(a.run[1:], "POINT", point)
	}
	return `act ` + point + ` berth --root "$R" ` + a.run
}

// after returns the script that checks what a power cut left.
func (a powerAct) after(ended bool) string {
	node := a.node
	if !ended && a.during != "" {
		node = a.during
	}
	kept := `"$KEPT"`
	if a.keeps != "" {
		kept = "''"
	}
	script := "whole " + node + " " + kept + "\n"
	if ended {
		script += a.ended + "\n"
	}
	return script + a.either + "\n"
}

// powerActs are those of each root, one after the other: roots of the same index are on different file systems.
var powerActs = [][]powerAct{
	{
		{
			name: "apply", before: "gone", run: `apply -f "$S"`, node: "yes", during: "perhaps",
			inside: [][]string{
				{"ids noted", "delta made", "did scratch.volume"},
				{"noted whole", "did oci.start", "phase up of $R/lib/nodes/$N/journal"},
			},
		},
		{
			name: "set", before: `running; b set "$N" memory.max=64MiB`, run: `set "$N" memory.max=65MiB`, node: "yes",
			inside: [][]string{{"set begun", "limit written", "written spec.json", "set stored"}},
			ended:  `b show --json "$N" | grep -q 65MiB || fail "the limit is the old one: $(b show "$N")"`,
			either: `b show --json "$N" | grep -q '6[45]MiB' || fail "the limit is none of the two: $(b show "$N")"`,
		},
	},
	{
		{
			name: "restart", before: "running", run: `restart --grace 0s "$N"`, node: "yes",
			inside: [][]string{{"phase removing of $R/run/nodes/$N/journal", "noted restart", "did oci.start"}},
		},
		{
			name: "rm", before: "running", run: `rm --force "$N"`, node: "no",
			inside: [][]string{
				{"phase removing of $R/lib/nodes/$N/journal", "undid scratch.volume"},
				{"delta moved away", "ids given back", "folder removed"},
			},
		},
	},
	{
		{
			name: "image import", before: "b image rm bb 2>/dev/null || true", run: "image import /root/busybox.tar bb", node: "no",
			inside: [][]string{{"layers unpacked", "layer placed", "record written"}},
			keeps:  imageTrees, ended: sameTrees(imageTrees),
			either: "b image import /root/busybox.tar bb; b run --name other --image oci:bb -- test -x /bin/busybox",
		},
		{
			name: "image pack", before: `rm -f "$R/bb.erofs"; b image rm "file:$R/bb.erofs" 2>/dev/null || true; b image import /root/busybox.tar bb`,
			run: `image pack bb -o "$R/bb.erofs"`, node: "no",
			inside: [][]string{{"packed file filled", "packed file recorded", "packed file in place"}},
			keeps:  packTrees, ended: sameTrees(packTrees) + `b run --name other --image "file:$R/bb.erofs" -- test -x /bin/busybox`,
			either: `[ -e "$R/bb.erofs" ] || b image pack bb -o "$R/bb.erofs"`,
		},
		{
			name: "image rm", before: "b image import /root/busybox.tar bb", run: "image rm bb", node: "no",
			ended: `! b image ls | grep -q "^bb " || fail "the image is there again: $(b image ls)"`,
		},
	},
	{
		{
			name: "pool add", before: "b pool rm second 2>/dev/null || true", run: `pool add second --dir "$R/pool2"`, node: "no",
			inside: [][]string{{"written second.json.tmp", "pool folder made"}},
			ended:  `b pool ls | grep -q ^second || fail "the pool is gone: $(b pool ls)"`,
		},
		{
			name: "image trust", before: "b image rm file:/root/other.erofs 2>/dev/null || true", run: "image trust /root/other.erofs", node: "no",
			inside: [][]string{{"trusted copy read", "trusted copy in place"}},
			keeps:  trustTrees, ended: sameTrees(trustTrees), either: "b run --trust --name other --image file:/root/other.erofs -- test -x /bin/busybox",
		},
		{
			name: "certs", node: "no",
			run:   `!b certs init 127.0.0.1; b certs issue -o "$R/one.tar" one; b certs install "$R/one.tar"`,
			keeps: certTrees, ended: sameTrees(certTrees) + `b certs ls | grep -q "^one " || fail "issued are $(b certs ls)"; tar -tf "$R/one.tar" >/dev/null; b certs install "$R/one.tar"`,
		},
	},
	{
		{
			name: "pool rm", before: `b pool add second --dir "$R/pool2" 2>/dev/null || true`, run: "pool rm second", node: "no",
			inside: [][]string{{"pool noted as being removed", "pool folder removed"}},
			ended:  `! b pool ls | grep -q ^second || fail "the pool is there again: $(b pool ls)"`,
		},
		{
			name: "net pool add", run: "net pool add macs 02:00:5e:10:00:01-02:00:5e:10:00:04", node: "no",
			ended: `b net pool ls | grep -q ^macs || fail "the pool is gone: $(b net pool ls)"`,
		},
		{
			name: "agent and apply", before: "gone", run: `!if [ -n POINT ]; then act POINT berthd --root "$R"; else agent; b apply -f "$S"; synced; fi`, node: "yes",
			inside: [][]string{{"written site.json.tmp", "written site.json"}}, during: "no",
			either: `agent; b apply -f "$S"; berthd --root "$R" --backup "/run/power/$N.backup"; grep -aq "$N" "/run/power/$N.backup"; kill $(cat "/run/power/$N.pid")`,
		},
	},
}

// The files that images and certificates leave on the disk.
const (
	imageTrees = `trees "$R/lib/images/layers" "$R/lib/images/records"`
	packTrees  = `trees "$R/bb.erofs" "$R/lib/images/packed/records"`
	trustTrees = `trees "$R/lib/images/packed/records" "$R/lib/images/packed/files"`
	certTrees  = `trees "$R/ca" "$R/certs" "$R/one.tar"`
)

// sameTrees returns a script that compares what such a command prints with what it printed before the power cut.
func sameTrees(trees string) string {
	return `[ "$KEPT" = "$(` + trees + `)" ] || fail "on the disk was"$'\n'"$KEPT"$'\n'"and is"$'\n'"$(` + trees + `)"` + "\n"
}
