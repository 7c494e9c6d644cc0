package access

import (
	"fmt"
	"strings"
)

// fill is the body that makes a node of the template.
func fill(name, parameters string) string {
	return fmt.Sprintf(`{"name": %q, "parameters": {%s}}`, name, parameters)
}

// request is one that must be refused.
type request struct {
	what, who, method, path, body string
	status                        int
	says                          string // part of the problem's detail
}

const (
	template = "/v1/templates/job/nodes"
	asJSON   = "application/json"
)

// hostile lists the requests of those who want more than their role has.
func hostile() []request {
	make := func(what, parameters, says string) request {
		return request{what, "ann", "POST", template, fill("x", parameters), 400, says}
	}
	named := func(what, name string) request {
		return request{what, "ann", "POST", template, `{"name": "` + name + `"}`, 400, "is not a name"}
	}
	spec := "name: x\nimage: host\ncommand: [/bin/true]\nmounts: [{source: /, target: /mnt}]\n"
	return append([]request{
		make("a mount as a parameter", `"mounts": [{"source": "/", "target": "/mnt"}]`, `"mounts" is no parameter of it`),
		make("a mount in a parameter", `"user": {"mounts": [{"source": "/"}]}`, "keys and values where a single value"),
		make("a mount by lines of YAML", `"note": "x\nmounts: [{source: /, target: /mnt}]"`, "cannot be seen"),
		make("a device", `"devices": ["/dev/sda"]`, "is no parameter"),
		make("unsafe", `"unsafe": true`, "is no parameter"),
		make("the host's ids", `"users": [{"from": 0, "count": 1, "as": "same"}]`, "is no parameter"),
		make("no user namespace", `"user_namespace": false`, "is no parameter"),
		make("set-user-id programs", `"no_new_privileges": false`, "is no parameter"),
		make("secrets of the host", `"env_from": "/etc/shadow"`, "is no parameter"),
		make("another hostname", `"hostname": "node1"`, "is no parameter"),
		make("the network of the host", `"network": [{"mode": "phys", "parent": "eth0"}]`, "is no parameter"),
		make("a label of another", `"berth.owner": "bob"`, "is no parameter"),
		make("all labels", `"labels": {"berth.owner": "bob"}`, "is no parameter"),
		make("the path of a field", `"labels.berth.owner": "bob"`, "is no parameter"),
		make("a field in place of a parameter", `"cpu.max": "64"`, "is no parameter"),
		make("another spelling", `"cpu": 2`, "did you mean cpus?"),
		make("a raised limit", `"cpus": 2.001`, "above the template's own 2"),
		make("a raised size", `"memory": "65MiB"`, "above 64MiB"),
		make("a limit of nothing", `"memory": "max"`, `"max" is not a size`),
		make("a limit of 0", `"cpus": 0`, "below 0.1"),
		make("a size below the bound", `"memory": 0`, "below 16MiB"),
		make("a negative limit", `"cpus": -1`, "is not a number"),
		make("a negative size", `"memory": "-1MiB"`, "below 0"),
		make("a huge number", `"tasks": 1e300`, "too long"),
		make("a number past 64 bits", `"tasks": 18446744073709551617`, "is not a whole number"),
		make("a huge size", `"memory": "9999999999TiB"`, "too large"),
		make("not a number", `"cpus": "NaN"`, "is not a number"),
		make("no end", `"cpus": "Inf"`, "is not a number"),
		make("a number of another base", `"tasks": "0x10"`, "is not a whole number"),
		make("digits that are none", `"tasks": "１６"`, "is not a whole number"),
		make("true", `"tasks": true`, "no values here"),
		make("nothing", `"tasks": null`, "no value"),
		make("a list in place of a number", `"cpus": [1]`, "a list where"),
		make("another image", `"image": "oci:evil"`, "one of host, oci:debian"),
		make("a folder as an image", `"image": "dir:/"`, "one of host, oci:debian"),
		make("a way up in an image", `"image": "oci:../../etc"`, "one of host, oci:debian"),
		make("an image with a space behind it", `"image": "host "`, "one of host, oci:debian"),
		make("a choice beside the list", `"queue": "root"`, "one of short, long"),
		make("a string beside its pattern", `"user": "root; rm -rf /"`, "must match"),
		make("a line behind a string", `"user": "root\n"`, "cannot be seen"),
		make("letters that look alike", `"user": "rооt"`, "must match"),
		make("writing that turns", `"note": "\u202etxt.exe"`, "cannot be seen"),
		make("no width", `"note": "a\u200bb"`, "cannot be seen"),
		make("a terminal's escape", `"note": "\u001b[2J"`, "cannot be seen"),
		make("the end of a string of C", `"note": "a\u0000b"`, "cannot be seen"),
		make("a long string", `"note": "`+strings.Repeat("x", 41)+`"`, "longer than 40"),
		make("too many words", `"args": ["1", "2", "3"]`, "at most 2"),
		make("a word beside its pattern", `"args": ["$(id)"]`, "must match"),
		make("a list in a list", `"args": [["1"]]`, "a list where"),
		named("a name that leads up", "../../x"), named("no name", ""), named("a name in capital letters", "X"),
		named("a name with a line", `x\ny`), named("a name that looks alike", "nоde"), named("a long name", strings.Repeat("x", 49)),
		named("a flag as a name", "--force"), named("the end of a name of C", `x\u0000`),
		{"a key beside name and parameters", "ann", "POST", template, `{"name": "x", "mounts": []}`, 400, "body"},
		{"an owner of their choice", "ann", "POST", template, `{"name": "x", "owner": "bob"}`, 400, "body"},
		{"two documents", "ann", "POST", template, fill("x", "") + fill("y", ""), 400, "more than one"},
		{"YAML in place of JSON", "ann", "POST", template, "name: x\n", 400, "body"},
		{"a large body", "ann", "POST", template, `{"name": "` + strings.Repeat("x", 2<<20) + `"}`, 413, "too large"},
		{"a template that all can write", "ann", "POST", "/v1/templates/open/nodes", fill("x", ""), 422, "others than root can write"},
		{"a template that is not there", "ann", "POST", "/v1/templates/none/nodes", fill("x", ""), 404, "no template none"},
		{"a template by a way up", "ann", "POST", "/v1/templates/..%2Foutside/nodes", fill("x", ""), 400, "is not the name of a template"},
		{"a template by its path", "ann", "POST", "/v1/templates/%2Fetc%2Fpasswd/nodes", fill("x", ""), 400, "is not the name of a template"},
		{"the name of another's node", "ann", "POST", template, fill("theirs", ""), 403, "it is not theirs"},
		{"the name of an admin's node", "ann", "POST", template, fill("free", ""), 403, "it is not theirs"},
		{"a free spec of an operator", "ann", "POST", "/v1/nodes", spec, 403, "may not do node.apply"},
		{"a free spec of a viewer", "eve", "POST", "/v1/nodes", spec, 403, "may not do node.apply"},
		{"a free spec of a host", "node2", "POST", "/v1/nodes", spec, 403, "may not do node.apply"},
		{"a template by a viewer", "eve", "POST", template, fill("x", ""), 403, "may not do node.make"},
		{"a template by a host", "node2", "POST", template, fill("x", ""), 403, "may not do node.make"},
		{"the nodes, by a host", "node2", "GET", "/v1/nodes", "", 403, "may not do node.list"},
		{"the images, by an operator", "ann", "GET", "/v1/images", "", 403, "may not do image.read"},
		{"the end of a node, by a viewer", "eve", "DELETE", "/v1/nodes/theirs?force=true", "", 403, "may not do node.end"},
		{"a stop by a viewer", "eve", "POST", "/v1/nodes/theirs/stop", "", 403, "may not do node.end"},
		{"an image, by an operator", "ann", "POST", "/v1/images", `{"ref": "registry.example/x"}`, 403, "may not do image.change"},
		{"an image's end, by a viewer", "eve", "DELETE", "/v1/images/debian", "", 403, "may not do image.change"},
		{"a host drained by an operator", "ann", "POST", "/v1/site/hosts/node1/drain", "", 403, "may not do site.change"},
		{"a host forgotten by a host", "node2", "DELETE", "/v1/site/hosts/node1", "", 403, "may not do site.change"},
		{"a certificate renewed by a person", "root", "POST", "/v1/certificates/renew", "x", 403, "may not do cert.renew"},
		{"a certificate renewed without a request", "node2", "POST", "/v1/certificates/renew", "x", 400, "no request for a certificate"},
	}, others("theirs")...)
}

// others are acts on a node that is another's: for the operator who asks there is none of this name.
func others(name string) (all []request) {
	for _, r := range []request{
		{method: "GET"},
		{method: "DELETE", path: "?force=true"},
		{method: "POST", path: "/stop"},
		{method: "POST", path: "/start"},
		{method: "POST", path: "/restart"},
		{method: "GET", path: "/logs"},
		{method: "GET", path: "/exec"},
		{method: "PATCH", path: "/limits", body: `{"cpu.max": "1"}`},
	} {
		r.what, r.who, r.path = "another's node: "+r.method+" "+r.path, "ann", "/v1/nodes/"+name+r.path
		r.status, r.says = 404, "no node "+name
		all = append(all, r)
	}
	return all
}
