package kubeconfig

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"hyperkube/internal/atomicfile"
)

// Target is the kubeconfig of the person who runs the program.
type Target struct {
	// Path is the file; it and its directory may not exist yet.
	Path string
	// Owner is who shall own it when it is new; nil means the process's user.
	Owner *atomicfile.Owner
}

// UserTarget finds the file: the first of $KUBECONFIG, else ~/.kube/config of
// the user, or of the one who called sudo. getenv is os.Getenv.
func UserTarget(getenv func(string) string) (Target, error) {
	var t Target
	home := getenv("HOME")
	if uid, err := strconv.Atoi(getenv("SUDO_UID")); err == nil && os.Geteuid() == 0 {
		gid, err := strconv.Atoi(getenv("SUDO_GID"))
		if err != nil {
			return Target{}, fmt.Errorf("reading $SUDO_GID: %w", err)
		}
		// sudo keeps HOME in some set-ups and changes it in others.
		if u, err := user.LookupId(strconv.Itoa(uid)); err == nil && u.HomeDir != "" {
			home = u.HomeDir
		}
		t.Owner = &atomicfile.Owner{UID: uid, GID: gid}
	}
	for _, path := range filepath.SplitList(getenv("KUBECONFIG")) {
		if path != "" {
			t.Path = path
			return t, nil
		}
	}
	if home == "" {
		// Started by an init system there may be no environment at all.
		u, err := user.Current()
		if err != nil || u.HomeDir == "" {
			return Target{}, errors.New("finding the kubeconfig: neither $KUBECONFIG nor $HOME is set")
		}
		home = u.HomeDir
	}
	t.Path = filepath.Join(home, clientcmd.RecommendedHomeDir, clientcmd.RecommendedFileName)
	return t, nil
}

// previousKey is the extension of our context in which Merge records what the
// current context was before.
const previousKey = "hyperkube.previous-context"

// Merge puts the way into the cluster into the file and makes it current.
// Everything else that is in the file stays. An entry of the same name that a
// previous Merge made is replaced.
func (t Target) Merge(cfg Config) error {
	c, err := t.load()
	if err != nil {
		return err
	}
	add := New(cfg)
	name := cfg.name()
	previous := c.CurrentContext
	if old := c.Contexts[name]; old != nil && previous == name {
		previous = recordedPrevious(old)
	}
	if previous != "" {
		add.Contexts[name].Extensions[previousKey] = &runtime.Unknown{
			Raw:         []byte(strconv.Quote(previous)),
			ContentType: runtime.ContentTypeJSON,
		}
	}
	maps.Copy(c.Clusters, add.Clusters)
	maps.Copy(c.AuthInfos, add.AuthInfos)
	maps.Copy(c.Contexts, add.Contexts)
	c.CurrentContext = name
	return t.save(c)
}

// Remove takes back what Merge did: the context, its cluster and user, and, if
// the context is still current, makes that current that was so before. A file
// in which nothing else remains is deleted. It is no error when there is
// nothing to remove. An empty name means DefaultName.
func (t Target) Remove(name string) error {
	name = (&Config{Name: name}).name()
	c, err := t.load()
	if err != nil {
		return err
	}
	context := c.Contexts[name]
	if context == nil {
		return nil
	}
	delete(c.Contexts, name)
	clusterUsed, userUsed := false, false
	for _, other := range c.Contexts {
		clusterUsed = clusterUsed || other.Cluster == context.Cluster
		userUsed = userUsed || other.AuthInfo == context.AuthInfo
	}
	if !clusterUsed {
		delete(c.Clusters, context.Cluster)
	}
	if !userUsed {
		delete(c.AuthInfos, context.AuthInfo)
	}
	if c.CurrentContext == name {
		c.CurrentContext = ""
		if previous := recordedPrevious(context); c.Contexts[previous] != nil {
			c.CurrentContext = previous
		}
	}
	if len(c.Contexts) == 0 && len(c.Clusters) == 0 && len(c.AuthInfos) == 0 {
		if err := os.Remove(t.Path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("removing the kubeconfig: %w", err)
		}
		return nil
	}
	return t.save(c)
}

func recordedPrevious(context *clientcmdapi.Context) string {
	u, ok := context.Extensions[previousKey].(*runtime.Unknown)
	if !ok {
		return ""
	}
	previous, err := strconv.Unquote(string(u.Raw))
	if err != nil {
		return ""
	}
	return previous
}

func (t Target) load() (*clientcmdapi.Config, error) {
	c, err := clientcmd.LoadFromFile(t.Path)
	if errors.Is(err, os.ErrNotExist) {
		return clientcmdapi.NewConfig(), nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig %s: %w", t.Path, err)
	}
	return c, nil
}

// save replaces the file, through a symbolic link if it is one, and keeps an
// existing file's owner.
func (t Target) save(c *clientcmdapi.Config) error {
	path := t.Path
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	owner := t.Owner
	if info, err := os.Stat(path); err == nil {
		if st, ok := info.Sys().(*syscall.Stat_t); ok && os.Geteuid() == 0 {
			owner = &atomicfile.Owner{UID: int(st.Uid), GID: int(st.Gid)}
		}
	}
	return write(path, c, owner)
}
