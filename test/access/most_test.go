package access

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"berth/internal/site/api"
	"berth/internal/sys/refuse"
	"berth/test/testkit"
)

// TestMost: an operator has as many nodes of a template as that says, however many he asks for at the same time; another has his own, and who removes one may make
// another.
func TestMost(t *testing.T) {
	h := serve(t)
	testkit.Must(t, os.WriteFile(h.Layout().Etc("templates/few.yaml"), []byte("most: 2\n"+job), 0o644))
	fillIn := func(owner, template, name string) error {
		_, err := h.nodes.ApplyTemplate(t.Context(), operator(owner), template, name, nil, 0)
		return err
	}
	const asked = 6
	all := make([]<-chan error, asked)
	for i := range asked {
		all[i] = begin(func() error { return fillIn("bob", "few", fmt.Sprint("few-", i)) })
	}
	var made []string
	for i, one := range all {
		switch err := <-one; {
		case err == nil:
			made = append(made, fmt.Sprint("few-", i))
		case refuse.KindOf(err) != refuse.Busy || !strings.Contains(err.Error(), "bob has 2 nodes of template few"):
			t.Error(err)
		}
	}
	if len(made) != 2 {
		t.Fatalf("of %d nodes %v were made, not 2", asked, made)
	}
	testkit.Must(t, fillIn("bob", "few", made[0])) // it is there
	testkit.Must(t, fillIn("bob", "job", "of-another-template"))
	testkit.Must(t, fillIn("ann", "few", "of-another-operator"))
	if status, text := h.ask(t, "bob", "POST", "/v1/templates/few/nodes", asJSON, `{"name": "third"}`); status != 409 {
		t.Errorf("%d %s", status, text)
	}
	testkit.Must(t, h.nodes.Remove(t.Context(), made[0], true, "bob"))
	testkit.Must(t, fillIn("bob", "few", "third"))
}

// TestOperators: a template that names operators is for these alone; another operator gets nothing of it, an admin still does.
func TestOperators(t *testing.T) {
	h := serve(t)
	testkit.Must(t, os.WriteFile(h.Layout().Etc("templates/slurms.yaml"), []byte("operators: [slurm, bob]\n"+job), 0o644))
	testkit.Must(t, os.WriteFile(h.Layout().Etc("templates/anns.yaml"), []byte("operators: [ann]\n"+job), 0o644))
	const named = `{"name": "named"}`
	for who, refused := range map[string]string{"bob": "anns", "ann": "slurms", "root": ""} { // the list says whom a template is not for
		var got struct{ Templates []api.Template }
		status, text := h.ask(t, who, "GET", "/v1/templates", "", "")
		testkit.Must(t, json.Unmarshal([]byte(text), &got))
		for _, one := range got.Templates {
			if one.Name != "anns" && one.Name != "slurms" {
				continue
			}
			if status != 200 || strings.Contains(one.Error, "may not make nodes of template") != (one.Name == refused) || (one.Node == nil) != (one.Name == refused) {
				t.Errorf("the list, for %s: %d %+v", who, status, one)
			}
		}
	}
	status, text := h.ask(t, "bob", "POST", "/v1/templates/anns/nodes", asJSON, named)
	if status != 403 || !strings.Contains(text, "operator bob may not make nodes of template anns") {
		t.Errorf("of a template of ann's: %d %s", status, text)
	}
	if n, err := h.nodes.Specs(); err != nil || len(n) != 0 {
		t.Fatalf("%d nodes were made: %v", len(n), err)
	}
	if status, text := h.ask(t, "bob", "POST", "/v1/templates/slurms/nodes", asJSON, named); status != 200 {
		t.Errorf("of a template that names bob: %d %s", status, text)
	}
	testkit.Must(t, h.nodes.Remove(t.Context(), "named", true, "bob"))
	if status, text := h.ask(t, "root", "POST", "/v1/templates/anns/nodes", asJSON, named); status != 200 {
		t.Errorf("an admin: %d %s", status, text)
	}
}
