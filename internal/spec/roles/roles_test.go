package roles

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"berth/internal/sys/refuse"
)

// TestTable checks each act with each role: a change of the table is stated here a second time.
func TestTable(t *testing.T) {
	all := string(Admin) + " " + string(Operator) + " " + string(Viewer)
	want := map[Act]string{
		HostRead: all + " host", RevokedRead: all + " host", CertRenew: "host", SyncReport: "host", MetricsRead: "admin viewer host",
		NodeList: all, EventsRead: all, TemplateRead: all,
		NodeRead: "admin own viewer", NodeLogs: "admin own viewer",
		NodeMake: "admin own", NodeEnd: "admin own", NodeStart: "admin own",
		NodeApply: "admin", NodeSet: "admin", NodeExec: "admin", ImageChange: "admin", SiteChange: "admin", Command: "admin",
		ImageRead: "admin viewer", PoolRead: "admin viewer", FunctionRead: "admin viewer", ServiceRead: "admin viewer", CommandRead: "admin viewer",
	}
	for _, act := range Acts() {
		words := strings.Fields(want[act])
		if len(words) == 0 {
			t.Errorf("%s: the test does not know this act", act)
		}
		for _, role := range Roles() {
			w := Who{"ann", role, ViaTLS}
			bare, others, theirs := Check(w, act), Check(w, act, "bob"), Check(w, act, "ann")
			has := func(word string) bool { return slices.Contains(words, word) }
			switch {
			case has(string(role)):
				if bare != nil || others != nil || theirs != nil {
					t.Errorf("%s may not do %s: %v, %v, %v", role, act, bare, others, theirs)
				}
			case role == Operator && has("own"):
				if bare == nil || others == nil || Check(w, act, "") == nil || Check(w, act, "ann", "bob") == nil {
					t.Errorf("an operator may do %s to what is not theirs", act)
				}
				if theirs != nil {
					t.Errorf("an operator may not do %s to their own node: %v", act, theirs)
				}
			case bare == nil || others == nil || theirs == nil:
				t.Errorf("%s may do %s", role, act)
			}
		}
	}
}

func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		who  Who
		act  Act
		node []Owner
		want string
	}{
		{Who{"ann", Viewer, ViaTLS}, NodeApply, nil, "viewer ann may not do node.apply; this takes the role admin; operators make nodes from templates, which GET /v1/templates of the agent lists"},
		{Who{"node7", Host, ViaTLS}, NodeEnd, []Owner{"node7"}, "host node7 may not do node.end; this takes the role admin or operator"},
		{Who{"ann", Operator, ViaTLS}, NodeEnd, []Owner{"bob"}, "operator ann may not do node.end to this node: it is not theirs; operators see and end the nodes that they made from templates; an admin may do it"},
		{Who{"", Operator, ViaTLS}, NodeEnd, []Owner{""}, "somebody without a name may not do node.end; berth certs issue makes a certificate with a name and a role"},
		{Who{"ann", "root", ViaTLS}, NodeRead, nil, "root may not do node.read; the roles are admin, operator, viewer and host"},
		{Who{"ann", Admin, ViaTLS}, "node.eat", nil, "admin may not do node.eat; the roles are admin, operator, viewer and host"},
	} {
		err := Check(c.who, c.act, c.node...)
		if err == nil || err.Error() != c.want {
			t.Errorf("%s %s:\ngot  %v\nwant %s", c.who, c.act, err, c.want)
			continue
		}
		if _, ok := errors.AsType[*Denied](err); !ok || refuse.KindOf(err) != refuse.Cannot {
			t.Errorf("%s %s: %T of kind %d, not a denial of kind %d", c.who, c.act, err, refuse.KindOf(err), refuse.Cannot)
		}
	}
}

func TestSees(t *testing.T) {
	for _, c := range []struct {
		who  Who
		node Owner
		want bool
	}{
		{Who{"ann", Operator, ViaTLS}, "ann", true},
		{Who{"ann", Operator, ViaTLS}, "bob", false},
		{Who{"ann", Operator, ViaTLS}, "", false},
		{Who{"", Operator, ViaTLS}, "", false},
		{Who{"ann", Viewer, ViaTLS}, "bob", true},
		{Who{"root", Admin, ViaUnix}, "", true},
	} {
		if got := Sees(c.who, c.node); got != c.want {
			t.Errorf("%s sees a node of %q: %v", c.who, c.node, got)
		}
	}
}

func TestNames(t *testing.T) {
	for _, good := range []string{"ann", "slurm", "node7", "ann.lee@site", "a", "node-7.example.org"} {
		if err := CheckName(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"", "Ann", "-ann", "ann-", "a..b", "a/b", "../x", "ann\n", "ann\x00", "аnn", "ann\u202e", "a b", "a=b", strings.Repeat("a", 64)} {
		if err := CheckName(bad); refuse.KindOf(err) != refuse.Invalid {
			t.Errorf("%q is taken for a name", bad)
		}
	}
}
