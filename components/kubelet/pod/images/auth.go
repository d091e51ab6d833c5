package images

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// dockerEntry is the entry of a registry in a Docker configuration file.
type dockerEntry struct {
	Username      string `json:"username"`
	Password      string `json:"password"`
	Auth          string `json:"auth"`
	IdentityToken string `json:"identitytoken"`
	RegistryToken string `json:"registrytoken"`
}

// Credential is a credential with which an image can be pulled. A credential without Secret and Account is
// available to all pods of the node.
type Credential struct {
	Auth *runtimeapi.AuthConfig // nil if no authentication is needed
	// Secret and Account are the source of the credential. At most one of them is not nil.
	Secret  *kubeletv1beta1.ImagePullSecret
	Account *kubeletv1beta1.ImagePullServiceAccount
}

// Auths returns the credentials in the pod's image pull secrets that match the image, the most specific
// first. Secrets with invalid content are ignored.
func Auths(image string, secrets []*v1.Secret) []Credential {
	var found []match
	for _, s := range secrets {
		for _, m := range matches(image, entries(s)) {
			raw, err := json.Marshal(m.auth)
			if err != nil {
				continue
			}
			sum := sha256.Sum256(raw)
			m.Secret = &kubeletv1beta1.ImagePullSecret{
				UID: string(s.UID), Namespace: s.Namespace, Name: s.Name, CredentialHash: hex.EncodeToString(sum[:]),
			}
			found = append(found, m)
		}
	}
	return ordered(found)
}

// NodeAuths returns the credentials of the node that match the image, the most specific first. files are
// paths of files in the format of ~/.docker/config.json. As upstream, only the first file with a match is
// used. Missing and invalid files are ignored.
func NodeAuths(image string, files []string) []Credential {
	var found []match
	for _, path := range files {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		found = append(found, matches(image, entries(&v1.Secret{Type: v1.SecretTypeDockerConfigJson, Data: map[string][]byte{v1.DockerConfigJsonKey: raw}}))...)
		if len(found) > 0 {
			break // only the first file with a match is used, as upstream
		}
	}
	return ordered(found)
}

// match is a Docker configuration entry that matches an image. key is the registry of the entry.
type match struct {
	key  string
	auth dockerEntry
	Credential
}

// matches returns the entries of list whose keys match the image. Keys are registries.
func matches(image string, list map[string]dockerEntry) []match {
	var found []match
	for key, e := range list {
		if !Matches(key, image) {
			continue
		}
		user, password := e.Username, e.Password
		if user == "" && e.Auth != "" {
			if raw, err := base64.StdEncoding.DecodeString(e.Auth); err == nil {
				user, password, _ = strings.Cut(strings.TrimRight(string(raw), "\x00"), ":")
			}
		}
		found = append(found, match{key, e, Credential{Auth: &runtimeapi.AuthConfig{
			Username: user, Password: password, Auth: e.Auth, IdentityToken: e.IdentityToken, RegistryToken: e.RegistryToken,
		}}})
	}
	return found
}

// ordered returns the credentials, those with the longest key first.
func ordered(found []match) []Credential {
	slices.SortStableFunc(found, func(a, b match) int {
		if len(a.key) != len(b.key) {
			return len(b.key) - len(a.key)
		}
		return strings.Compare(a.key, b.key)
	})
	var out []Credential
	for _, m := range found {
		out = append(out, m.Credential)
	}
	return out
}

// entries returns the entries of a Secret of a Docker type by registry, or nil if the Secret has another type
// or invalid content.
func entries(s *v1.Secret) map[string]dockerEntry {
	switch s.Type {
	case v1.SecretTypeDockerConfigJson:
		var file struct {
			Auths map[string]dockerEntry `json:"auths"`
		}
		if json.Unmarshal(s.Data[v1.DockerConfigJsonKey], &file) == nil {
			return file.Auths
		}
	case v1.SecretTypeDockercfg:
		var auths map[string]dockerEntry
		if json.Unmarshal(s.Data[v1.DockerConfigKey], &auths) == nil {
			return auths
		}
	}
	return nil
}

// Matches reports whether credentials for the registry key can be used for the image. key may have a path,
// which must be a prefix of the image's path, and wildcards in the parts of its host name. Images without a
// registry are those of Docker Hub.
func Matches(key, image string) bool {
	if !strings.Contains(key, "://") {
		key = "https://" + key
	}
	k, err := url.Parse(key)
	if err != nil {
		return false
	}
	repo, _, _ := strings.Cut(image, "@")
	host, rest, ok := strings.Cut(repo, "/")
	if !ok || !(strings.ContainsAny(host, ".:") || host == "localhost") {
		host, rest = "index.docker.io", repo
		if k.Host == "docker.io" {
			k.Host = host
		}
	} else if host == "docker.io" {
		host = "index.docker.io"
	}
	keyPath := strings.Trim(k.Path, "/")
	if k.Host == "index.docker.io" && (keyPath == "v1" || keyPath == "v2") {
		keyPath = ""
	}
	keyPath = strings.TrimPrefix(strings.TrimPrefix(keyPath, "v1/"), "v2/")
	if keyPath == "v1" || keyPath == "v2" {
		keyPath = ""
	}
	if k.Port() != "" || strings.Contains(host, ":") {
		hostOnly, port, _ := strings.Cut(host, ":")
		if k.Port() != port {
			return false
		}
		host = hostOnly
	}
	want, have := strings.Split(k.Hostname(), "."), strings.Split(host, ".")
	if len(want) != len(have) {
		return false
	}
	for i := range want {
		if m, err := path.Match(want[i], have[i]); err != nil || !m {
			return false
		}
	}
	return keyPath == "" || rest == keyPath || strings.HasPrefix(rest, keyPath)
}
