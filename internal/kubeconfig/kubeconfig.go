// Package kubeconfig writes the files by which clients find and enter the
// cluster: one for each component, and the context "hyperkube" in the file of
// the person who started it.
//
// https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig/
package kubeconfig

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"hyperkube/internal/atomicfile"
)

// DefaultName is what a cluster is called that has no other name.
const DefaultName = "hyperkube"

// Config is one way into a cluster.
type Config struct {
	// Name is the name of cluster and context; DefaultName when empty.
	Name string
	// User is the name of the user's entry; Name + "-admin" when empty. The
	// server takes the real name from the credentials.
	User string
	// Server is the API server's URL.
	Server string
	// ServerName is what the server's certificate is for, if not the name or
	// address in Server; may be empty.
	ServerName string
	// CA are the PEM certificates that the server is verified by.
	CA []byte
	// Cert and Key are a client certificate in PEM; or CertFile and KeyFile
	// are where it is, for clients that are to see when it changes; or Token
	// is a bearer token.
	Cert, Key         []byte
	CertFile, KeyFile string
	Token             string
	// Namespace is the context's; may be empty.
	Namespace string
}

// New makes a kubeconfig of its own with one cluster, user and context.
// Compression is off: it costs more than it saves to a server on the same
// machine.
func New(cfg Config) *clientcmdapi.Config {
	name := cfg.name()
	user := cfg.User
	if user == "" {
		user = name + "-admin"
	}
	cluster := clientcmdapi.NewCluster()
	cluster.Server = cfg.Server
	cluster.TLSServerName = cfg.ServerName
	cluster.CertificateAuthorityData = cfg.CA
	cluster.DisableCompression = true
	auth := clientcmdapi.NewAuthInfo()
	auth.ClientCertificateData = cfg.Cert
	auth.ClientKeyData = cfg.Key
	auth.ClientCertificate = cfg.CertFile
	auth.ClientKey = cfg.KeyFile
	auth.Token = cfg.Token
	context := clientcmdapi.NewContext()
	context.Cluster = name
	context.AuthInfo = user
	context.Namespace = cfg.Namespace
	c := clientcmdapi.NewConfig()
	c.Clusters[name] = cluster
	c.AuthInfos[user] = auth
	c.Contexts[name] = context
	c.CurrentContext = name
	return c
}

func (cfg *Config) name() string {
	if cfg.Name == "" {
		return DefaultName
	}
	return cfg.Name
}

// Write makes path a kubeconfig of its own, mode 0600. A file that says the
// same already is left alone.
func Write(path string, cfg Config) error {
	return write(path, New(cfg), nil)
}

// write encodes c into path. The owner of a new file or directory is owner.
func write(path string, c *clientcmdapi.Config, owner *atomicfile.Owner) error {
	data, err := clientcmd.Write(*c)
	if err != nil {
		return fmt.Errorf("encoding a kubeconfig: %w", err)
	}
	old, err := os.ReadFile(path)
	if err == nil && bytes.Equal(old, data) {
		return nil
	}
	if err := mkdirOwned(filepath.Dir(path), owner); err != nil {
		return fmt.Errorf("making the directory of a kubeconfig: %w", err)
	}
	err = atomicfile.Write(atomicfile.File{Path: path, Data: data, Mode: 0o600, Owner: owner})
	if err != nil {
		return fmt.Errorf("writing a kubeconfig: %w", err)
	}
	return nil
}

// mkdirOwned makes dir and those of its parents that are missing, and gives
// what it made to owner.
func mkdirOwned(dir string, owner *atomicfile.Owner) error {
	err := os.Mkdir(dir, 0o755)
	if errors.Is(err, os.ErrNotExist) {
		if err := mkdirOwned(filepath.Dir(dir), owner); err != nil {
			return err
		}
		err = os.Mkdir(dir, 0o755)
	}
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	if err == nil && owner != nil {
		err = os.Chown(dir, owner.UID, owner.GID)
	}
	return err
}
