package registry

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"github.com/docker/cli/cli/config"
	"github.com/docker/cli/cli/config/configfile"
	"github.com/docker/cli/cli/config/types"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"golang.org/x/sys/unix"

	"berth/internal/sys/refuse"
)

// loginFiles lists the files in which Podman and Docker keep logins, in the order in which they are asked.
func loginFiles(env func(string) string) []string {
	if file := env("REGISTRY_AUTH_FILE"); file != "" {
		return []string{file}
	}
	var files []string
	if dir := env("XDG_RUNTIME_DIR"); dir != "" {
		files = append(files, filepath.Join(dir, "containers/auth.json"))
	}
	files = append(files, "/run/containers/0/auth.json") // Podman's, as root without XDG_RUNTIME_DIR
	home := env("HOME")
	if dir := env("XDG_CONFIG_HOME"); dir != "" {
		files = append(files, filepath.Join(dir, "containers/auth.json"))
	} else if home != "" {
		files = append(files, filepath.Join(home, ".config/containers/auth.json"))
	}
	if dir := env("DOCKER_CONFIG"); dir != "" {
		files = append(files, filepath.Join(dir, "config.json"))
	} else if home != "" {
		files = append(files, filepath.Join(home, ".docker/config.json"))
	}
	return files
}

// login returns the login for a repository, from the first file that has one.
func login(env func(string) string, repo name.Repository) (authn.Authenticator, error) {
	for _, file := range loginFiles(env) {
		c, trusted, err := readLogins(file)
		if errors.Is(err, fs.ErrNotExist) && env("REGISTRY_AUTH_FILE") == "" {
			continue
		}
		if err != nil {
			return nil, err
		}
		a, err := loginIn(c, repo, trusted)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		a.ServerAddress = ""
		if a != (types.AuthConfig{}) {
			return authn.FromConfig(authn.AuthConfig{
				Username: a.Username, Password: a.Password, Auth: a.Auth, IdentityToken: a.IdentityToken, RegistryToken: a.RegistryToken,
			}), nil
		}
	}
	return authn.Anonymous, nil
}

// mostLogins is the most bytes of a file with logins.
const mostLogins = 1 << 20

// readLogins reads a file with logins. trusted says that only root, or this user, can write it.
func readLogins(file string) (c *configfile.ConfigFile, trusted bool, err error) {
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK, 0) // opening a FIFO must not block
	if err != nil {
		return nil, false, fmt.Errorf("read logins: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, false, err
	}
	if !info.Mode().IsRegular() || info.Size() > mostLogins {
		return nil, false, refuse.Invalidf("%s is no file with logins", file)
	}
	text, err := io.ReadAll(io.LimitReader(f, mostLogins))
	if err != nil {
		return nil, false, err
	}
	if len(bytes.TrimSpace(text)) == 0 {
		text = []byte("{}")
	}
	if c, err = config.LoadFromReader(bytes.NewReader(text)); err != nil {
		// Without the cause, which may quote a secret.
		return nil, false, refuse.Invalidf("%s cannot be read: it is no JSON with logins as podman login and docker login write them", file)
	}
	return c, onlyOwn(info), nil
}

// onlyOwn reports whether only root, or this user, can write a file.
func onlyOwn(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && (st.Uid == 0 || st.Uid == uint32(os.Geteuid())) && info.Mode().Perm()&0o022 == 0
}

// loginIn returns the login for a repository from one file. Podman's files may name a part of a registry: the longest one
// counts. A helper is asked for the whole registry.
func loginIn(c *configfile.ConfigFile, repo name.Repository, trusted bool) (types.AuthConfig, error) {
	host := repo.RegistryStr()
	hosts := []string{host}
	if host == name.DefaultRegistry {
		hosts = []string{"docker.io", authn.DefaultAuthKey}
	}
	for path := repo.RepositoryStr(); path != "." && path != "/"; path = filepath.Dir(path) {
		if a, ok := c.AuthConfigs[hosts[0]+"/"+path]; ok {
			return a, nil
		}
	}
	for _, key := range hosts {
		helper := c.CredentialsStore
		if own, ok := c.CredentialHelpers[key]; ok {
			helper = own
		}
		if err := checkHelper(helper, trusted); err != nil {
			return types.AuthConfig{}, err
		}
		a, err := c.GetCredentialsStore(key).Get(key)
		if err != nil {
			return types.AuthConfig{}, fmt.Errorf("ask docker-credential-%s: %s", helper, clean(err.Error()))
		}
		if a.Username != "" || a.Auth != "" || a.IdentityToken != "" || a.RegistryToken != "" {
			return a, nil
		}
	}
	return types.AuthConfig{}, nil
}

var helperName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]*$`)

// checkHelper refuses a credential helper that another user than this one, root, chose or can change: it is a program
// that the file names and this user runs.
func checkHelper(helper string, trusted bool) error {
	if helper == "" {
		return nil
	}
	if !helperName.MatchString(helper) {
		return refuse.Invalidf("%q is no name of a credential helper", helper)
	}
	program := "docker-credential-" + helper
	if !trusted {
		return &refuse.Error{
			Kind: refuse.Invalid, What: "the file names the program " + program + ", and others than root can write the file",
			Remedy: "chown root and chmod go-w it, or log in again as root: podman login REGISTRY",
		}
	}
	path, err := exec.LookPath(program)
	if err != nil {
		return &refuse.Error{
			Kind: refuse.Cannot, What: "the login is kept by the program " + program + ", and PATH has none", Remedy: "install it, or log in again: podman login REGISTRY", Err: err,
		}
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !onlyOwn(info) {
		return &refuse.Error{Kind: refuse.Cannot, What: "others than root can change " + path, Remedy: "chown root and chmod go-w it"}
	}
	return nil
}

// clean returns a text of a registry or a helper for a message: printable, and not long.
func clean(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 || r == 0x202e {
			return ' '
		}
		return r
	}, text)
	if len(text) > 300 {
		text = strings.ToValidUTF8(text[:300], "") + "…"
	}
	return strings.TrimSpace(text)
}
