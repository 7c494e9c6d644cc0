package spec

import (
	"reflect"
	"strings"

	"berth/internal/spec/vnode"
)

// ParseAllowList reads an admin's list of the host's ids that nodes may share, as strictly as a spec. file is its name in
// messages. An empty file allows none. The error is Problems.
func ParseAllowList(file string, data []byte) (*vnode.AllowList, error) {
	list := &vnode.AllowList{}
	return list, ParseOne(file, data, "the list", list, vnode.CheckAllowList)
}

// ParseOne reads a file of one document that is no node, as strictly as a spec. file and what name it in messages. Keys are the json
// tags of T; an empty file changes nothing. check returns the mistakes in the document. The error is Problems.
func ParseOne[T any](file string, data []byte, what string, into *T, check func(*T) []vnode.Problem) error {
	r := &reader{file: file}
	if r.readable(data) {
		docs := r.documents(strings.TrimPrefix(string(data), "\ufeff"))
		if len(docs) > 1 {
			r.bad(start(docs[1]), "", "a second document: "+what+" is one")
			docs = nil
		}
		for _, doc := range docs {
			d := &decoder{reader: r, positions: positions{}}
			d.value(doc, "", reflect.ValueOf(into).Elem())
			for _, p := range check(into) {
				if !d.hasFailed(p.Field) && !d.lacksKnown(p.Field) {
					r.bad(d.positions.find(p.Field), p.Field, p.Msg)
				}
			}
		}
	}
	if len(r.problems) > 0 {
		r.problems.sort()
		return r.problems
	}
	return nil
}
