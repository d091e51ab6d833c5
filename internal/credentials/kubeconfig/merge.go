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

	"hyperkube/internal/host/atomicfile"
)

// Target is the kubeconfig file of the user who runs hyperkube, in which Merge adds the context of
// the cluster.
type Target struct {
	// Path is the path of the file. The file and its directory need not exist.
	Path string
	// Owner is the owner of a new file. If it is nil, the owner is the user of the process.
	Owner *atomicfile.Owner
}

// UserTarget finds the kubeconfig file of the user: the first path in $KUBECONFIG, else .kube/config in the home
// directory. If the process runs as root and was started with sudo, the user is the one who called sudo. getenv is
// os.Getenv. UserTarget returns an error if there is neither a path nor a home directory, or if $SUDO_GID is not a
// number.
func UserTarget(getenv func(string) string) (Target, error) {
	var t Target
	home := getenv("HOME")
	if uid, err := strconv.Atoi(getenv("SUDO_UID")); err == nil && os.Geteuid() == 0 {
		gid, err := strconv.Atoi(getenv("SUDO_GID"))
		if err != nil {
			return Target{}, fmt.Errorf("reading $SUDO_GID: %w", err)
		}
		// Whether sudo preserves HOME depends on its configuration.
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
		// A process started by an init system may have no environment.
		u, err := user.Current()
		if err != nil || u.HomeDir == "" {
			return Target{}, errors.New("finding kubeconfig: neither $KUBECONFIG nor $HOME is set")
		}
		home = u.HomeDir
	}
	t.Path = filepath.Join(home, clientcmd.RecommendedHomeDir, clientcmd.RecommendedFileName)
	return t, nil
}

// previousKey is the name of the extension in which Merge stores the previous current context.
const previousKey = "hyperkube.previous-context"

// Merge adds the cluster, user and context of cfg to the file and makes the context current. It stores the name of
// the previous current context in the file, for Remove. Other entries are not changed. An entry with the same name
// from a previous Merge is replaced. It returns an error, and does not write, if an existing file cannot be read.
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

// Remove reverts Merge: it removes the context, and its cluster and user unless another context refers to them. If
// the context is still current, it restores the previous current context, if that still exists. It deletes the file
// if nothing else remains. It is not an error if there is nothing to remove. An empty name means DefaultName.
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
			return fmt.Errorf("removing kubeconfig: %w", err)
		}
		return nil
	}
	return t.save(c)
}

// recordedPrevious returns the name of the previous current context that Merge has stored in context, or "" if there
// is none or it cannot be read.
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

// load reads the file. It returns an empty configuration if the file does not exist, and an error if it cannot be
// read.
func (t Target) load() (*clientcmdapi.Config, error) {
	c, err := clientcmd.LoadFromFile(t.Path)
	if errors.Is(err, os.ErrNotExist) {
		return clientcmdapi.NewConfig(), nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading kubeconfig %s: %w", t.Path, err)
	}
	return c, nil
}

// save writes c to the file. If the file is a symbolic link, it writes the target of the link. If the process runs as
// root, it keeps the owner of an existing file.
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
