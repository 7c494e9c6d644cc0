// Package api defines the JSON documents of the API that berth's own --json does not print: problems, the hosts and nodes of a
// site, and the frames of a relayed command.
package api

import (
	"time"

	"berth/internal/spec/template"
)

// Problem is an error as RFC 9457 has it, with Berth's sentence, remedy and exit code.
type Problem struct {
	Type   string `json:"type"`   // about:blank: the status says it all
	Title  string `json:"title"`  // the status in words
	Status int    `json:"status"` // of the answer
	Detail string `json:"detail"` // Berth's sentence: what was refused, and why

	Remedy   string    `json:"remedy,omitempty"`   // what to do next
	Code     int       `json:"code"`               // exit code that the command line has for it
	Field    string    `json:"field,omitempty"`    // of the first mistake of a spec
	Line     int       `json:"line,omitempty"`     // of the first mistake of a spec
	Mistakes []Mistake `json:"mistakes,omitempty"` // all mistakes of a spec
}

// ProblemType is the media type of a problem.
const ProblemType = "application/problem+json"

// Mistake is one mistake of a spec.
type Mistake struct {
	Line    int    `json:"line"`
	Column  int    `json:"column"`
	Field   string `json:"field,omitempty"`
	Message string `json:"message"`
}

// HostFacts describes the host that berthd runs on.
type HostFacts struct {
	Name    string `json:"name"`
	Version string `json:"version"` // of Berth
	Kernel  string `json:"kernel"`
	Cgroups string `json:"cgroups"` // v1 | v2 | hybrid
	CPUs    int    `json:"cpus"`
	Memory  int64  `json:"memory"` // bytes
	Nodes   int    `json:"nodes"`
	Running int    `json:"running"`

	Slots  int               `json:"slots,omitempty"` // how many nodes it takes; 0: no bound of its own
	Free   int               `json:"free,omitempty"`  // of these
	Rack   string            `json:"rack,omitempty"`
	Labels map[string]string `json:"labels,omitempty"` // of the host, by its agent's file
}

// Host is a host of a site.
type Host struct {
	Name    string    `json:"name"`
	Address string    `json:"address,omitempty"` // where its agent listens
	Version string    `json:"version,omitempty"`
	Alive   bool      `json:"alive"` // its agent holds its lease
	Drained bool      `json:"drained,omitempty"`
	Since   time.Time `json:"since,omitzero"` // of its membership

	Facts *HostFacts `json:"facts,omitempty"` // as it told them last; none of a host that is away
}

// Template describes a template, with the parameters that operators may set.
type Template struct {
	Name        string                        `json:"name"`
	Description string                        `json:"description,omitempty"`
	Parameters  map[string]template.Parameter `json:"parameters"`
	Error       string                        `json:"error,omitempty"` // it cannot be used by the one who asks
	Node        *TemplateNode                 `json:"node,omitempty"`
}

// TemplateNode has the limits of a template's nodes, where no parameter lowers them. A limit that is absent is not set by the
// template.
type TemplateNode struct {
	Class     string   `json:"class,omitempty"`     // batch | storage
	CPUs      float64  `json:"cpus,omitempty"`      // cpu.max
	Memory    int64    `json:"memory,omitempty"`    // memory.max, in bytes
	Scratch   int64    `json:"scratch,omitempty"`   // of all volumes, in bytes
	Networks  []string `json:"networks,omitempty"`  // modes of its interfaces
	Functions int      `json:"functions,omitempty"` // virtual functions of network adapters
}

// SiteNode is a node of a site, as its host told it last.
type SiteNode struct {
	Host      string   `json:"host"`
	Name      string   `json:"name"`
	Owner     string   `json:"owner,omitempty"` // the operator who made it from a template
	Phase     string   `json:"phase"`           // running | paused | stopped | exited
	Addresses []string `json:"addresses,omitempty"`
	MACs      []string `json:"macs,omitempty"`
	Digest    string   `json:"digest,omitempty"` // of its spec

	Labels map[string]string `json:"labels,omitempty"`
}

// SiteHosts is the hosts of a site.
type SiteHosts struct {
	Hosts []Host `json:"hosts"`
	Stale string `json:"stale,omitempty"` // why this is the last known state, and since when
}

// SiteNodes is a page of the nodes of a site.
type SiteNodes struct {
	Nodes    []SiteNode `json:"nodes"`
	Continue string     `json:"continue,omitempty"` // ask with it for the next page; none: this is the last one
	Stale    string     `json:"stale,omitempty"`    // why this is the last known state, and since when
}

// Logs says which part of a log is wanted.
type Logs struct {
	Lines  int // the last ones; negative: all
	Follow bool
}

// Done is the result of an act.
type Done struct {
	Name string `json:"name"`
	Did  string `json:"did"` // as the command line says it: started | runs already …
}
