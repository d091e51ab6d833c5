// Package images is the runtime's image store. It pulls images from registries, imports them from
// archives, unpacks each layer once into a separate directory, and returns the directories of an
// image's root. Incomplete data never gets its final name, so a crash leaves no partial images or
// layers.
package images

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ErrNotFound reports that an image does not exist, in the store or in its registry.
var ErrNotFound = errors.New("not found")

// ErrUnauthorized reports that the registry has rejected the credentials.
var ErrUnauthorized = errors.New("authorization failed")

// Image is an image in the store. Callers must not modify it.
type Image struct {
	// ID is the digest of the image configuration, "sha256:…".
	ID string `json:"id"`
	// Tags are normalized references with a tag. Digests are references with the digest of the
	// manifest.
	Tags    []string `json:"tags,omitempty"`
	Digests []string `json:"digests,omitempty"`
	// Layers are the names of the layer directories in the store, lowest first.
	Layers []string `json:"layers"`
	// DiffIDs are the digests of the uncompressed layers, lowest first. Empty for images pulled by
	// earlier versions.
	DiffIDs []string `json:"diffIDs,omitempty"`
	// Size is the size of the compressed layers and the configuration in bytes.
	Size uint64 `json:"size"`
	// Pinned images are not garbage collected: imported and built-in images.
	Pinned bool `json:"pinned,omitempty"`
	// BuiltIn is true for images created by the store itself.
	BuiltIn bool `json:"builtIn,omitempty"`
	// Time is the time of the last write of the record.
	Time time.Time `json:"time"`
	// Config contains the settings for containers.
	Config Config `json:"config"`
}

// Config is the part of an image configuration that containers use.
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

// document is a complete image configuration in the OCI or docker format.
type document struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
	Config       Config `json:"config"`
	RootFS       struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
}

// UserName returns the user of the image: its UID if it is numeric, else its name. It returns
// neither if the image does not specify a user.
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

// ChainID returns the chain ID of all layers, which `crictl inspecti` shows. It is empty if DiffIDs is.
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

// names returns the tags and digests under which the image is stored.
func (i *Image) names() []string { return slices.Concat(i.Tags, i.Digests) }

// clone returns a copy whose tags and digests can be modified.
func (i *Image) clone() *Image {
	c := *i
	c.Tags = append([]string(nil), i.Tags...)
	c.Digests = append([]string(nil), i.Digests...)
	return &c
}
