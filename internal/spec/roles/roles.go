// Package roles defines what each role may do: one table of acts and roles, and the rule that operators see and end only their
// own nodes.
package roles

import (
	"regexp"
	"slices"
	"strings"
	"sync"

	"berth/internal/sys/refuse"
)

// Role is the role that a person, service or host has in a site.
type Role string

// The roles.
const (
	Admin    Role = "admin"    // free specs: root on the host, also every caller on the agent's unix socket
	Operator Role = "operator" // nodes from templates, and what becomes of them
	Viewer   Role = "viewer"   // reads
	Host     Role = "host"     // the agent of a host of the site
)

// Roles lists the roles, those of people first.
func Roles() []Role { return []Role{Admin, Operator, Viewer, Host} }

// Who is the person, service or host that makes a request.
type Who struct {
	Name string
	Role Role
	Via  string // how they asked: ViaUnix or ViaTLS
}

// The ways to ask.
const (
	ViaUnix = "unix" // the agent's socket: its group is root
	ViaTLS  = "tls"  // with a certificate
)

// String returns the role and the name, for messages: "operator ann".
func (w Who) String() string { return string(w.Role) + " " + w.Name }

// Owner is the operator to whom a node belongs: the value of its label OwnerLabel. It is empty for a node of a free spec.
type Owner string

// OwnLabels begins the names of labels that only Berth sets.
const OwnLabels = "berth."

// The labels that the agent sets on a node that an operator makes from a template.
const (
	OwnerLabel    = OwnLabels + "owner"
	TemplateLabel = OwnLabels + "template"
)

// OwnerOf returns the owner of a node with these labels.
func OwnerOf(labels map[string]string) Owner { return Owner(labels[OwnerLabel]) }

// Act is something that can be asked of an agent.
type Act string

// The acts. Those on one node are asked with its owner.
const (
	HostRead     Act = "host.read"     // facts of hosts, and which hosts a site has
	NodeList     Act = "node.list"     // operators get their own: see Sees
	NodeRead     Act = "node.read"     // one node: status, spec, what it has
	NodeLogs     Act = "node.logs"     // what its process wrote
	NodeApply    Act = "node.apply"    // a free spec: any folder, any device, the host's ids
	NodeMake     Act = "node.make"     // a node from a template
	NodeEnd      Act = "node.end"      // stop, kill, remove
	NodeStart    Act = "node.start"    // start or restart one that is there
	NodeSet      Act = "node.set"      // change its limits
	NodeExec     Act = "node.exec"     // run a command in it
	EventsRead   Act = "events.read"   // operators get those of their own nodes: see Sees
	ImageRead    Act = "image.read"    // images
	ImageChange  Act = "image.change"  // pull, remove
	PoolRead     Act = "pool.read"     // pools of scratch volumes
	FunctionRead Act = "function.read" // virtual functions of adapters
	ServiceRead  Act = "service.read"  // protected services
	TemplateRead Act = "template.read" // templates and their parameters
	SiteChange   Act = "site.change"   // drain, undrain, forget
	MetricsRead  Act = "metrics.read"  // figures for Prometheus
	Command      Act = "command"       // any command line of berth
	CommandRead  Act = "command.read"  // a command line that only reads
	CertRenew    Act = "cert.renew"    // its own certificate, with name and role kept
	RevokedRead  Act = "revoked.read"  // the list of revoked certificates
	SyncReport   Act = "sync.report"   // a file server's report on the nodes, to the allocator of the site
)

// answer is a cell of the table. The zero value is no.
type answer int

const (
	no  answer = iota
	yes        // for every node
	own        // for the caller's own nodes
)

// table says for each act what each role may: admin, operator, viewer, host.
var table = map[Act][4]answer{
	HostRead:     {yes, yes, yes, yes},
	NodeList:     {yes, yes, yes, no},
	NodeRead:     {yes, own, yes, no},
	NodeLogs:     {yes, own, yes, no},
	NodeApply:    {yes, no, no, no},
	NodeMake:     {yes, own, no, no},
	NodeEnd:      {yes, own, no, no},
	NodeStart:    {yes, own, no, no},
	NodeSet:      {yes, no, no, no},
	NodeExec:     {yes, no, no, no},
	EventsRead:   {yes, yes, yes, no},
	ImageRead:    {yes, no, yes, no},
	ImageChange:  {yes, no, no, no},
	PoolRead:     {yes, no, yes, no},
	FunctionRead: {yes, no, yes, no},
	ServiceRead:  {yes, no, yes, no},
	TemplateRead: {yes, yes, yes, no},
	SiteChange:   {yes, no, no, no},
	MetricsRead:  {yes, no, yes, yes},
	Command:      {yes, no, no, no},
	CommandRead:  {yes, no, yes, no},
	CertRenew:    {no, no, no, yes},
	RevokedRead:  {yes, yes, yes, yes},
	SyncReport:   {no, no, no, yes},
}

// Acts lists all acts in the order of their names.
func Acts() []Act {
	all := make([]Act, 0, len(table))
	for a := range table {
		all = append(all, a)
	}
	slices.Sort(all)
	return all
}

// Check refuses an act that the role does not allow. For an act on one node the caller names its owner. An operator's act on a node
// whose owner is not named, or empty, is refused; NodeMake names the owner of the node that has the name already, or the caller if
// there is none. The refusal says no more of a node than that it is not theirs. It is a *Denied, of kind refuse.Cannot.
func Check(w Who, act Act, node ...Owner) error {
	if w.Name == "" {
		return denied(w, act, "somebody without a name", "berth certs issue makes a certificate with a name and a role")
	}
	row, known := table[act]
	column := slices.Index(Roles(), w.Role)
	if !known || column < 0 {
		return denied(w, act, string(w.Role), "the roles are admin, operator, viewer and host")
	}
	switch row[column] {
	case yes:
		return nil
	case own:
		if len(node) > 0 && !slices.ContainsFunc(node, func(o Owner) bool { return !owns(w, o) }) {
			return nil
		}
		return &Denied{w, act, refuse.Error{
			Kind: refuse.Cannot, What: w.String() + " may not do " + string(act) + " to this node: it is not theirs",
			Remedy: "operators see and end the nodes that they made from templates; an admin may do it",
		}}
	}
	return denied(w, act, w.String(), remedy(act))
}

// Sees reports whether a list of nodes shows a node with this owner to the caller, who may list nodes.
func Sees(w Who, node Owner) bool { return w.Role != Operator || owns(w, node) }

func owns(w Who, node Owner) bool { return w.Name != "" && string(node) == w.Name }

func denied(w Who, act Act, who, remedy string) error {
	return &Denied{w, act, refuse.Error{Kind: refuse.Cannot, What: who + " may not do " + string(act), Remedy: remedy}}
}

// remedy says which roles may do the act, and what operators can use in place of free specs.
func remedy(act Act) string {
	var who []string
	for i, role := range Roles() {
		if table[act][i] != no {
			who = append(who, string(role))
		}
	}
	text := "this takes the role " + strings.Join(who, " or ")
	if act == NodeApply || act == Command {
		text += "; operators make nodes from templates, which GET /v1/templates of the agent lists"
	}
	return text
}

// Denied is the refusal of Check: the server answers 403.
type Denied struct {
	Who     Who
	Act     Act
	Refusal refuse.Error
}

func (d *Denied) Error() string { return d.Refusal.Error() }

// Unwrap returns the refusal with its sentence, remedy and exit code.
func (d *Denied) Unwrap() error { return &d.Refusal }

// names are those of people and services: what a label, a line of the audit and a file name can hold as it is.
var names = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\A[a-z0-9]([a-z0-9._@-]{0,61}[a-z0-9])?\z`) }) // made when it is needed: each start of berth would pay

// CheckName refuses a text that is no name of a person, a service or a host.
func CheckName(name string) error {
	if !names().MatchString(name) || strings.Contains(name, "..") {
		return refuse.Invalidf("%.80q is not a name: lower-case letters, digits, '.', '_', '@' and '-' between them, at most 63", name)
	}
	return nil
}
