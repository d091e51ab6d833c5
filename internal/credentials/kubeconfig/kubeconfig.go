// Package kubeconfig writes kubeconfig files: one for each component, and the context "hyperkube"
// in the file of the user who started the cluster. It also reads the files of users, as kubectl does.
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

	"hyperkube/internal/host/atomicfile"
)

// DefaultName is the default cluster name.
const DefaultName = "hyperkube"

// Config is the content of a kubeconfig for a cluster.
type Config struct {
	// Name is the name of the cluster and the context. Default: DefaultName.
	Name string
	// User is the name of the user entry. Default: Name + "-admin". The server authenticates the
	// user by the credentials, not by this name.
	User string
	// Server is the URL of the API server.
	Server string
	// ServerName is the expected name in the server's certificate, if it differs from the host in
	// Server. It may be empty.
	ServerName string
	// CA contains the PEM certificates that verify the server.
	CA []byte
	// The credentials are either Cert and Key, a client certificate in PEM, or CertFile and
	// KeyFile, the paths of one, for clients that must reload it when it changes, or Token, a
	// bearer token.
	Cert, Key         []byte
	CertFile, KeyFile string
	Token             string
	// Namespace is the namespace of the context. It may be empty.
	Namespace string
}

// New creates a kubeconfig with one cluster, user and context. Compression is disabled, because it
// costs more than it saves on the same machine.
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

// name returns Name, or DefaultName if it is empty.
func (cfg *Config) name() string {
	if cfg.Name == "" {
		return DefaultName
	}
	return cfg.Name
}

// Write writes a kubeconfig for cfg to path with mode 0600, and creates missing directories. It does not write the
// file if the content is the same, so that its modification time remains.
func Write(path string, cfg Config) error {
	return write(path, New(cfg), nil)
}

// write writes c to path with mode 0600, unless the file already has this content. A new file and new directories
// belong to owner, or to the user of the process if owner is nil.
func write(path string, c *clientcmdapi.Config, owner *atomicfile.Owner) error {
	data, err := clientcmd.Write(*c)
	if err != nil {
		return fmt.Errorf("encoding kubeconfig: %w", err)
	}
	old, err := os.ReadFile(path)
	if err == nil && bytes.Equal(old, data) {
		return nil
	}
	if err := mkdirOwned(filepath.Dir(path), owner); err != nil {
		return fmt.Errorf("creating directory of the kubeconfig: %w", err)
	}
	err = atomicfile.Write(atomicfile.File{Path: path, Data: data, Mode: 0o600, Owner: owner})
	if err != nil {
		return fmt.Errorf("writing kubeconfig: %w", err)
	}
	return nil
}

// mkdirOwned creates dir and its missing parents, and sets owner, unless it is nil, on the created directories. It
// changes nothing if dir exists.
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
