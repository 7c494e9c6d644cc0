package server

import (
	"net/http"
	"slices"

	"berth/internal/image"
	"berth/internal/network/sriov"
	"berth/internal/node"
	"berth/internal/node/protect"
	"berth/internal/site/api"
	"berth/internal/spec/roles"
	"berth/internal/storage/scratch"
)

// body is a media type that a request may send, and the Go type or the schema of its document.
type body struct {
	media string
	of    any // nil: a spec
}

// Common documents that no package of the mechanisms has.
type (
	// nodes is a page of the nodes of a host.
	nodes struct {
		Nodes    []node.Status `json:"nodes"`
		Continue string        `json:"continue,omitempty"`
	}
	images struct {
		Images []image.Record `json:"images"`
	}
	pools struct {
		Pools []scratch.Listed `json:"pools"`
	}
	functions struct {
		Functions []sriov.PF `json:"functions"`
	}
	protected struct {
		Protected []protect.Service `json:"protected"`
	}
	templates struct {
		Templates []api.Template `json:"templates"`
	}
	outcomes struct {
		Outcomes []*node.Outcome `json:"outcomes"`
	}
	results struct {
		Results []node.SetResult `json:"results"`
	}
	// fill has the values that a template is filled with.
	fill struct {
		Name       string         `json:"name"`
		Parameters map[string]any `json:"parameters,omitempty"`
		Hold       int64          `json:"hold_ms,omitempty"` // milliseconds after which its command begins, at the earliest
	}
	// fetch says which image of a registry is wanted.
	fetch struct {
		Ref  string `json:"ref"`
		Name string `json:"name,omitempty"`
	}
)

// lists the parameters of a list that comes in pages.
func paged(more ...param) []param {
	return append(more,
		param{name: "limit", about: "at most so many; 0 is no bound", kind: "integer", most: 100000},
		param{name: "continue", about: "the page after the one that gave this", kind: "string"},
	)
}

func states() []string { return []string{node.Running, node.Paused, node.Stopped, node.Exited} }

// routes lists the operations of the API.
func routes() []route {
	return slices.Concat(nodeRoutes(), streamRoutes(), hostRoutes(), siteRoutes())
}

func nodeRoutes() []route {
	const one = "/v1/nodes/{name}"
	grace := param{name: "grace", about: "seconds to wait before everything is killed; without it as the spec says", kind: "integer", most: 3600}
	restart := param{name: "restart", about: "restart a running node if a change needs it", kind: "boolean"}
	return []route{
		{
			method: http.MethodGet, path: "/v1/nodes", id: "listNodes", summary: "the nodes of this host", act: roles.NodeRead,
			params: paged(
				param{name: "name", about: "only nodes whose names begin so", kind: "string"},
				param{name: "label", about: "only nodes with the label NAME or NAME=VALUE; of several, all", kind: "string", many: true},
				param{name: "state", about: "only nodes in this state", kind: "string", words: states()},
			),
			gives: nodes{}, do: (*call).listNodes,
		},
		{
			method: http.MethodPost, path: "/v1/nodes", id: "applySpec", summary: "make nodes as a spec says; who may do this is root of the host", act: roles.NodeApply,
			params: []param{restart, {name: "file", about: "the spec's name in messages", kind: "string"}},
			takes:  []body{{media: "application/yaml"}, {media: "application/json"}},
			gives:  outcomes{}, refusals: []int{404, 409, 422}, do: (*call).apply,
		},
		{
			method: http.MethodPost, path: "/v1/templates/{template}/nodes", id: "applyTemplate", summary: "make a node from a template that the host's admins keep", act: roles.NodeMake,
			takes: []body{{"application/json", fill{}}}, gives: node.Outcome{}, refusals: []int{404, 409, 422}, do: (*call).applyTemplate,
		},
		{method: http.MethodGet, path: one, id: "showNode", summary: "one node, with its limits as the kernel has them", act: roles.NodeRead, gives: node.Detail{}, refusals: []int{404}, do: (*call).showNode},
		{
			method: http.MethodDelete, path: one, id: "removeNode", summary: "remove a node and what it wrote", act: roles.NodeEnd,
			params: []param{{name: "force", about: "also if it runs: it is killed", kind: "boolean"}}, gives: api.Done{}, refusals: []int{404, 409}, do: (*call).removeNode,
		},
		{method: http.MethodPost, path: one + "/start", id: "startNode", summary: "start a stopped node", act: roles.NodeStart, gives: api.Done{}, refusals: []int{404, 409, 422}, do: (*call).startNode},
		{method: http.MethodPost, path: one + "/stop", id: "stopNode", summary: "stop a running node", act: roles.NodeEnd, params: []param{grace}, gives: api.Done{}, refusals: []int{404, 409}, do: (*call).stopNode},
		{method: http.MethodPost, path: one + "/restart", id: "restartNode", summary: "stop a node and start it again", act: roles.NodeStart, params: []param{grace}, gives: api.Done{}, refusals: []int{404, 409, 422}, do: (*call).restartNode},
		{
			method: http.MethodPatch, path: one + "/limits", id: "setLimits", summary: "change limits, live if the node runs; all or none", act: roles.NodeSet,
			takes: []body{{"application/json", map[string]string{}}}, gives: results{}, refusals: []int{404, 409, 422}, do: (*call).setLimits,
		},
	}
}

func streamRoutes() []route {
	follow := param{name: "follow", about: "go on with what comes", kind: "boolean"}
	return []route{
		{
			method: http.MethodGet, path: "/v1/nodes/{name}/logs", id: "readLogs", summary: "what a node's command wrote, byte for byte", act: roles.NodeLogs,
			params: []param{follow, {name: "lines", about: "only the last ones", kind: "integer"}}, stream: "application/octet-stream", refusals: []int{404}, do: (*call).logs,
		},
		{
			method: http.MethodGet, path: "/v1/events", id: "readEvents",
			summary: "what happened to nodes: an object a line, or server-sent events if the client accepts text/event-stream", act: roles.EventsRead,
			params: []param{
				follow,
				{name: "after", about: "only what came after the event with this id", kind: "string"},
				{name: "node", about: "only of these nodes", kind: "string", many: true},
			},
			stream: "application/x-ndjson", refusals: []int{410}, do: (*call).events,
		},
		{method: http.MethodGet, path: "/v1/nodes/{name}/exec", id: "execInNode", summary: "a websocket to a command in a running node", act: roles.NodeExec, stream: webSocket, refusals: []int{404, 426}, do: (*call).exec},
		{method: http.MethodGet, path: "/v1/command", id: "runCommand", summary: "a websocket to a command line of berth on this host", act: roles.Command, stream: webSocket, refusals: []int{426}, do: (*call).command},
	}
}

func hostRoutes() []route {
	host := func(c *call) Host { return c.server.Host }
	return []route{
		reading(roles.HostRead, "/v1/host", "showHost", "facts of this host", api.HostFacts{}, func(c *call) (any, error) { return host(c).Facts(c.ctx()) }),
		reading(roles.ImageRead, "/v1/images", "listImages", "the images of the store", images{}, func(c *call) (any, error) {
			all, err := host(c).Images(c.ctx())
			return images{list(all)}, err
		}),
		reading(roles.TemplateRead, "/v1/templates", "listTemplates", "the templates of this host, and what may be chosen of each", templates{}, func(c *call) (any, error) {
			all, err := host(c).Templates(c.who)
			return templates{list(all)}, err
		}),
		reading(roles.PoolRead, "/v1/pools", "listPools", "the pools of scratch volumes", pools{}, func(c *call) (any, error) {
			all, err := host(c).Pools(c.ctx())
			return pools{list(all)}, err
		}),
		reading(roles.FunctionRead, "/v1/functions", "listFunctions", "adapters and their virtual functions", functions{}, func(c *call) (any, error) {
			all, err := host(c).Functions(c.ctx())
			return functions{list(all)}, err
		}),
		reading(roles.ServiceRead, "/v1/protected", "listProtected", "protected services of this host", protected{}, func(c *call) (any, error) {
			all, err := host(c).Protected(c.ctx())
			return protected{list(all)}, err
		}),
		{
			method: http.MethodPost, path: "/v1/images", id: "pullImage", summary: "fetch an image from a registry", act: roles.ImageChange,
			takes: []body{{"application/json", fetch{}}}, gives: image.Record{}, refusals: []int{404, 409, 422}, do: (*call).pullImage,
		},
		{method: http.MethodDelete, path: "/v1/images/{image}", id: "removeImage", summary: "remove an image that no node uses", act: roles.ImageChange, gives: api.Done{}, refusals: []int{404, 409}, do: (*call).removeImage},
	}
}

// list returns a list that is written as [] where there is nothing in it.
func list[T any](all []T) []T {
	if all == nil {
		return []T{}
	}
	return all
}

// reading returns the operation that reads one list, for callers who may.
func reading(act roles.Act, path, id, summary string, gives any, do func(*call) (any, error)) route {
	return route{method: http.MethodGet, path: path, id: id, summary: summary, act: act, gives: gives, do: func(c *call) (any, error) {
		if err := c.may(act); err != nil {
			return nil, err
		}
		return do(c)
	}}
}

func siteRoutes() []route {
	const host = "/v1/site/hosts/{host}"
	return []route{
		{method: http.MethodGet, path: "/v1/site/hosts", id: "listHosts", summary: "the hosts of the site", act: roles.HostRead, gives: api.SiteHosts{}, refusals: []int{422}, do: (*call).listHosts},
		{
			method: http.MethodGet, path: "/v1/site/nodes", id: "listSiteNodes", summary: "the nodes of the site", act: roles.NodeList,
			params: paged(
				param{name: "host", about: "only nodes of this host", kind: "string"},
				param{name: "name", about: "only nodes whose names begin so", kind: "string"},
				param{name: "owner", about: "only nodes of this operator", kind: "string"},
				param{name: "label", about: "only nodes with the label NAME or NAME=VALUE; of several, all", kind: "string", many: true},
				param{name: "phase", about: "only nodes in this phase", kind: "string", words: states()},
			),
			gives: api.SiteNodes{}, refusals: []int{422}, do: (*call).listSiteNodes,
		},
		{method: http.MethodPost, path: host + "/drain", id: "drainHost", summary: "keep new nodes from a host", act: roles.SiteChange, gives: api.Done{}, refusals: []int{404, 409, 422}, do: (*call).drain},
		{method: http.MethodPost, path: host + "/undrain", id: "undrainHost", summary: "let new nodes start on a host again", act: roles.SiteChange, gives: api.Done{}, refusals: []int{404, 409, 422}, do: (*call).undrain},
		{method: http.MethodDelete, path: host, id: "forgetHost", summary: "release what a host that does not come back has claimed", act: roles.SiteChange, gives: api.Done{}, refusals: []int{404, 409, 422}, do: (*call).forget},
	}
}
