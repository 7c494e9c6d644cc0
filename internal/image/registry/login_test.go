package registry

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
)

// TestLogin looks for logins where Podman and Docker keep them.
func TestLogin(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	// auth: who:word
	write("run/containers/auth.json", `{"auths": {"a.example": {"auth": "YTpydW4="}, "a.example/team": {"auth": "YTp0ZWFt"}}}`, 0o600)
	write("home/.config/containers/auth.json", `{"auths": {"b.example": {"auth": "YTpjb25maWc="}, "docker.io": {"auth": "YTpodWI="}}}`, 0o600)
	write("home/.docker/config.json", `{"auths": {"https://c.example": {"auth": "YTpkb2NrZXI="}}, "credHelpers": {"h.example": "berthtest", "u.example": "../x", "n.example": "nowhere"}}`, 0o600)
	write("open/config.json", `{"credHelpers": {"h.example": "berthtest"}, "auths": {"o.example": {"auth": "YTpvcGVu"}}}`, 0o666)
	write("hub/config.json", `{"auths": {"https://index.docker.io/v1/": {"auth": "YTpvbGQ="}}}`, 0o600)
	write("empty.json", ``, 0o600)
	write("broken.json", `{"auths": {"a.example": {"auth": "c2VjcmV0"}`, 0o600)
	write("bin/docker-credential-berthtest", "#!/bin/sh\nread host\necho '{\"Username\":\"a\",\"Secret\":\"helper of '$host'\"}'\n", 0o755)
	t.Setenv("PATH", filepath.Join(dir, "bin")+":"+os.Getenv("PATH"))
	all := map[string]string{"XDG_RUNTIME_DIR": dir + "/run", "HOME": dir + "/home"}
	for _, c := range []struct {
		repo string
		env  map[string]string
		want string // the password, or words of the error
	}{
		{"a.example/other/app", all, "run"},
		{"a.example/team/app", all, "team"},
		{"a.example/teams/app", all, "run"},
		{"b.example/app", all, "config"},
		{"c.example/app", all, "docker"},
		{"d.example/app", all, ""},
		{"docker.io/library/debian", all, "hub"},
		{"docker.io/library/debian", map[string]string{"DOCKER_CONFIG": dir + "/hub"}, "old"},
		{"h.example/app", all, "helper of h.example"},
		{"u.example/app", all, "no name of a credential helper"},
		{"n.example/app", all, "PATH has none"},
		{"o.example/app", map[string]string{"DOCKER_CONFIG": dir + "/open"}, "open"},
		{"h.example/app", map[string]string{"DOCKER_CONFIG": dir + "/open"}, "others than root can write the file"},
		{"a.example/app", map[string]string{"REGISTRY_AUTH_FILE": dir + "/empty.json"}, ""},
		{"a.example/app", map[string]string{"REGISTRY_AUTH_FILE": dir + "/none.json"}, "no such file"},
		{"a.example/app", map[string]string{"REGISTRY_AUTH_FILE": dir}, "no file with logins"},
		{"a.example/app", map[string]string{"REGISTRY_AUTH_FILE": dir + "/broken.json"}, "cannot be read"},
	} {
		repo, err := name.NewRepository(c.repo)
		if err != nil {
			t.Fatal(err)
		}
		a, err := login(func(n string) string { return c.env[n] }, repo)
		got := ""
		if err == nil {
			var config *authn.AuthConfig
			if config, err = a.Authorization(); err == nil {
				got = config.Password
			}
		}
		if err != nil {
			got = err.Error()
		}
		if got != c.want && (err == nil || !strings.Contains(got, c.want)) || strings.Contains(got, "c2VjcmV0") {
			t.Errorf("%s with %v: %q, want %q", c.repo, c.env, got, c.want)
		}
	}
	write("bin/docker-credential-berthtest", "#!/bin/sh\n", 0o777)
	repo, _ := name.NewRepository("h.example/app")
	if _, err := login(func(n string) string { return all[n] }, repo); err == nil || !strings.Contains(err.Error(), "others than root can change") {
		t.Errorf("a helper that everybody can write: %v", err)
	}
}
