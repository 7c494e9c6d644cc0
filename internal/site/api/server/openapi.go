package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"berth/internal/image"
	"berth/internal/network/sriov"
	"berth/internal/node"
	"berth/internal/node/protect"
	"berth/internal/site/api"
	"berth/internal/spec"
	"berth/internal/spec/vnode"
	"berth/internal/storage/scratch"
	"berth/internal/sys/mac"
)

// object is a JSON object of the document.
type object = map[string]any

// OpenAPI returns the OpenAPI 3.1 document of the API, made from the table of routes and the Go types of their documents.
var OpenAPI = sync.OnceValue(func() []byte {
	text, err := openAPI()
	if err != nil {
		panic(err) // of the program's own types: a test makes it
	}
	return text
})

func openAPI() ([]byte, error) {
	d := described{schemas: object{}}
	paths := object{}
	for _, r := range routes() {
		op := d.operation(r)
		if paths[r.path] == nil {
			paths[r.path] = object{}
		}
		paths[r.path].(object)[strings.ToLower(r.method)] = op
	}
	if d.err != nil {
		return nil, d.err
	}
	return json.MarshalIndent(object{
		"openapi": "3.1.0",
		"info": object{
			"title": "Berth", "version": "v1",
			"description": "The agent of a host: its nodes, and the hosts and nodes of its site. Over a unix socket, and over TCP with mutual TLS 1.3.",
			"license":     object{"name": "Apache-2.0", "identifier": "Apache-2.0"},
		},
		"servers":    []any{object{"url": "/"}},
		"paths":      paths,
		"components": object{"schemas": d.schemas},
	}, "", " ")
}

// described collects the schemas that operations refer to.
type described struct {
	schemas object
	err     error
}

// texts are the types that JSON has as text.
func texts() map[reflect.Type]*jsonschema.Schema {
	all := map[reflect.Type]*jsonschema.Schema{}
	for _, t := range []reflect.Type{
		reflect.TypeFor[vnode.Bytes](), reflect.TypeFor[vnode.Rate](), reflect.TypeFor[vnode.BitRate](), reflect.TypeFor[vnode.Cores](),
		reflect.TypeFor[vnode.Duration](), reflect.TypeFor[vnode.Image](), reflect.TypeFor[mac.Address](),
	} {
		all[t] = &jsonschema.Schema{Type: "string"}
	}
	all[reflect.TypeFor[time.Time]()] = &jsonschema.Schema{Type: "string", Format: "date-time"}
	return all
}

// names of documents whose Go names say too little outside of their packages.
func documentNames() map[reflect.Type]string {
	return map[reflect.Type]string{
		reflect.TypeFor[nodes](): "NodeList", reflect.TypeFor[node.Detail](): "Node", reflect.TypeFor[node.Outcome](): "Outcome",
		reflect.TypeFor[images](): "ImageList", reflect.TypeFor[image.Record](): "Image", reflect.TypeFor[pools](): "PoolList",
		reflect.TypeFor[scratch.Listed](): "Pool", reflect.TypeFor[functions](): "FunctionList", reflect.TypeFor[sriov.PF](): "Adapter",
		reflect.TypeFor[protected](): "ProtectedList", reflect.TypeFor[protect.Service](): "Service", reflect.TypeFor[outcomes](): "OutcomeList",
		reflect.TypeFor[results](): "ResultList", reflect.TypeFor[fill](): "Fill", reflect.TypeFor[fetch](): "Fetch", reflect.TypeFor[told](): "Event",
		reflect.TypeFor[map[string]string](): "Limits",
	}
}

// ref returns a reference to the schema of a document, which it adds.
func (d *described) ref(v any) object {
	name := "Spec"
	if v != nil {
		t := reflect.TypeOf(v)
		if name = documentNames()[t]; name == "" {
			name = t.Name()
		}
	}
	if d.schemas[name] == nil {
		var s any
		var err error
		if v == nil {
			var text []byte
			text, err = spec.Schema()
			s = json.RawMessage(text)
		} else {
			s, err = jsonschema.ForType(reflect.TypeOf(v), &jsonschema.ForOptions{TypeSchemas: texts()})
		}
		if err != nil && d.err == nil {
			d.err = fmt.Errorf("schema of %s: %w", name, err)
		}
		d.schemas[name] = s
	}
	return object{"$ref": "#/components/schemas/" + name}
}

var inPath = regexp.MustCompile(`\{(\w+)\}`)

// always are the statuses with which any operation may be refused.
func always() []int {
	return []int{http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusInternalServerError, http.StatusServiceUnavailable}
}

func (d *described) operation(r route) object {
	op := object{"operationId": r.id, "summary": r.summary, "tags": []string{strings.Split(r.path, "/")[2]}, "x-berth-act": string(r.act)}
	var params []any
	for _, m := range inPath.FindAllStringSubmatch(r.path, -1) {
		params = append(params, object{"name": m[1], "in": "path", "required": true, "schema": object{"type": "string", "minLength": 1}})
	}
	for _, p := range r.params {
		params = append(params, p.described())
	}
	if params != nil {
		op["parameters"] = params
	}
	statuses := slices.Concat(always(), r.refusals, []int{http.StatusTooManyRequests})
	if r.method != http.MethodGet || r.stream == webSocket {
		statuses = append(statuses, http.StatusInsufficientStorage) // the audit takes no more
	}
	if r.takes != nil {
		content := object{}
		for _, b := range r.takes {
			content[b.media] = object{"schema": d.ref(b.of)}
		}
		op["requestBody"] = object{"required": true, "content": content}
		statuses = append(statuses, http.StatusRequestTimeout, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType)
	}
	answers := object{}
	switch {
	case r.stream == webSocket:
		answers["101"] = object{"description": "docs/api.md says what goes through the websocket"}
	case r.id == "readEvents":
		answers["200"] = object{"description": "an object a line", "content": object{
			r.stream: object{"schema": object{"type": "string"}, "itemSchema": d.ref(told{})}, "text/event-stream": object{"schema": object{"type": "string"}},
		}}
	case r.stream != "":
		answers["200"] = object{"description": "a stream", "content": object{r.stream: object{}}}
	case r.gives != nil:
		answers["200"] = object{"description": r.summary, "content": object{"application/json": object{"schema": d.ref(r.gives)}}}
	}
	for _, s := range statuses {
		answers[strconv.Itoa(s)] = object{"description": http.StatusText(s), "content": object{api.ProblemType: object{"schema": d.ref(api.Problem{})}}}
	}
	op["responses"] = answers
	return op
}

func (p param) described() object {
	s := object{"type": p.kind}
	if p.kind == "integer" {
		s["minimum"], s["maximum"] = 0, p.largest()
	}
	if p.words != nil {
		s["enum"] = p.words
	}
	if p.many {
		s = object{"type": "array", "items": s}
	}
	return object{"name": p.name, "in": "query", "description": p.about, "schema": s}
}
