// Package images is the runtime's store of images: it pulls them from
// registries, imports them from archives, unpacks each layer once into a folder
// of its own and knows which folders make up an image's root. What is not
// whole never gets its final name, so that a crash leaves nothing half made.
package images

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// ErrNotFound tells that there is no such image, here or in its registry.
var ErrNotFound = errors.New("not found")

// ErrUnauthorized tells that the registry wants other credentials.
var ErrUnauthorized = errors.New("authorization failed")

// Image is an image that is on this node. Callers must not write to it.
type Image struct {
	// ID is the digest of its configuration, "sha256:…".
	ID string `json:"id"`
	// Tags are normalised references with a tag, Digests with the digest of
	// the manifest.
	Tags    []string `json:"tags,omitempty"`
	Digests []string `json:"digests,omitempty"`
	// Layers are the folders of its layers below the store's, the lowest
	// first.
	Layers []string `json:"layers"`
	// DiffIDs are the digests of the layers' content, the lowest first; none of
	// images that earlier versions have pulled.
	DiffIDs []string `json:"diffIDs,omitempty"`
	// Size is that of the compressed layers and the configuration in bytes.
	Size uint64 `json:"size"`
	// Pinned images are not collected: imported and built-in ones.
	Pinned bool `json:"pinned,omitempty"`
	// BuiltIn images were made by the store itself.
	BuiltIn bool `json:"builtIn,omitempty"`
	// Time is when the record was last written.
	Time time.Time `json:"time"`
	// Config is what containers made of it go by.
	Config Config `json:"config"`
}

// Config is the part of an image's configuration that containers go by.
//
// https://github.com/opencontainers/image-spec/blob/main/config.md
type Config struct {
	User       string              `json:"User,omitempty"`
	Env        []string            `json:"Env,omitempty"`
	Entrypoint []string            `json:"Entrypoint,omitempty"`
	Cmd        []string            `json:"Cmd,omitempty"`
	WorkingDir string              `json:"WorkingDir,omitempty"`
	StopSignal string              `json:"StopSignal,omitempty"`
	Volumes    map[string]struct{} `json:"Volumes,omitempty"`
	Labels     map[string]string   `json:"Labels,omitempty"`
}

// document is an image's whole configuration.
type document struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
	Config       Config `json:"config"`
	RootFS       struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
}

// UserName returns the image's user: its number if it is one, else its name;
// neither if the image names none.
func (c Config) UserName() (uid *int64, name string) {
	user, _, _ := strings.Cut(c.User, ":")
	if user == "" {
		return nil, ""
	}
	if n, err := strconv.ParseInt(user, 10, 64); err == nil {
		return &n, ""
	}
	return nil, user
}

// ChainID is the digest that names all the layers together; empty where their
// digests are not known.
//
// https://github.com/opencontainers/image-spec/blob/main/config.md#layer-chainid
func (i *Image) ChainID() string {
	var chain string
	for n, id := range i.DiffIDs {
		if n == 0 {
			chain = id
			continue
		}
		chain = fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(chain+" "+id)))
	}
	return chain
}

func (i *Image) clone() *Image {
	c := *i
	c.Tags = append([]string(nil), i.Tags...)
	c.Digests = append([]string(nil), i.Digests...)
	return &c
}
