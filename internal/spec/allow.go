package spec

import (
	"reflect"
	"strings"

	"berth/internal/vnode"
)

// ParseAllowList reads an admin's list of the host's ids that nodes may share, as strictly as a spec. file is its name in
// messages. An empty file allows none. The error is Problems.
func ParseAllowList(file string, data []byte) (*vnode.AllowList, error) {
	r, list := &reader{file: file}, &vnode.AllowList{}
	if r.readable(data) {
		docs := r.documents(strings.TrimPrefix(string(data), "\ufeff"))
		if len(docs) > 1 {
			r.bad(start(docs[1]), "", "a second document: the list is one")
			docs = nil
		}
		for _, doc := range docs {
			d := &decoder{reader: r, positions: positions{}}
			d.value(doc, "", reflect.ValueOf(list).Elem())
			for _, p := range vnode.CheckAllowList(list) {
				if !d.hasFailed(p.Field) && !d.lacksKnown(p.Field) {
					r.bad(d.positions.find(p.Field), p.Field, p.Msg)
				}
			}
		}
	}
	if len(r.problems) > 0 {
		r.problems.sort()
		return nil, r.problems
	}
	return list, nil
}
