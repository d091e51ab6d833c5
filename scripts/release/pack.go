package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// nfpmConfig is the configuration of nfpm, see https://nfpm.goreleaser.com/docs/configuration/. Only the fields
// that are used exist.
type nfpmConfig struct {
	Name            string            `json:"name"`
	Arch            string            `json:"arch"`
	Platform        string            `json:"platform"`
	Version         string            `json:"version"`
	VersionSchema   string            `json:"version_schema"`
	Release         string            `json:"release"`
	Section         string            `json:"section"`
	Priority        string            `json:"priority"`
	Maintainer      string            `json:"maintainer"`
	Description     string            `json:"description"`
	License         string            `json:"license"`
	DisableGlobbing bool              `json:"disable_globbing"`
	MTime           time.Time         `json:"mtime"`
	Depends         []string          `json:"depends"`
	Recommends      []string          `json:"recommends"`
	Suggests        []string          `json:"suggests"`
	Contents        []nfpmContent     `json:"contents"`
	Scripts         map[string]string `json:"scripts"`
	RPM             map[string]string `json:"rpm"`
}

type nfpmContent struct {
	Source      string         `json:"src,omitempty"`
	Destination string         `json:"dst"`
	Type        string         `json:"type,omitempty"`
	FileInfo    map[string]any `json:"file_info,omitempty"`
}

const description = `Kubernetes in one program
hyperkube is a complete Kubernetes: etcd, API server, controllers, scheduler,
kubelet, container runtime, service proxy, cluster DNS and kubectl.
The service hyperkube.service runs a cluster on this machine. It is disabled
after the installation.`

// pack creates a package with nfpm, in the format "deb" or "rpm". files has paths below /usr.
func (c config) pack(ctx context.Context, t target, format string, files tree) error {
	root := filepath.Join(c.work, format+"-"+t.arch)
	installed := files.moved("usr")
	if format == "deb" {
		// The zsh of Debian only searches this directory.
		script := path.Join("usr", completions["zsh"])
		installed["usr/share/zsh/vendor-completions/_hyperkube"] = installed[script]
		delete(installed, script)
		// The place of the license in Debian.
		installed[path.Join("usr", docDir, "copyright")] = entry{data: []byte(copyrightFile)}
	}
	cfg := nfpmConfig{
		Name: "hyperkube", Arch: t.arch, Platform: "linux", Version: strings.TrimPrefix(c.version, "v"), VersionSchema: "none", Release: "1",
		Section: "admin", Priority: "optional", Maintainer: "The hyperkube Authors", Description: description, License: ourLicense,
		DisableGlobbing: true, MTime: c.time,
		Depends: []string{"iptables"}, Recommends: []string{"ca-certificates"},
		Scripts: map[string]string{
			"postinstall": "packaging/scripts/postinstall", "preremove": "packaging/scripts/preremove", "postremove": "packaging/scripts/postremove",
		},
		RPM: map[string]string{"buildhost": "localhost", "summary": strings.SplitN(description, "\n", 2)[0], "compression": "gzip"},
		Contents: []nfpmContent{{
			Source: "packaging/service.env", Destination: "/etc/hyperkube/service.env", Type: "config|noreplace",
			FileInfo: map[string]any{"mode": 0o644},
		}},
	}
	if format == "deb" {
		cfg.Release = "" // the version of a package without changes to its source has no revision
		cfg.Recommends = append(cfg.Recommends, "apparmor")
		cfg.Suggests = []string{"nfs-common", "open-iscsi"}
	} else {
		cfg.Recommends = append(cfg.Recommends, "container-selinux")
		cfg.Suggests = []string{"nfs-utils", "iscsi-initiator-utils"}
	}
	for i, name := range installed.paths() {
		e := installed[name]
		content := nfpmContent{Source: e.source, Destination: "/" + name, FileInfo: map[string]any{"mode": e.mode(), "owner": "root", "group": "root"}}
		switch {
		case e.link != "":
			content.Source, content.Type = e.link, "symlink"
		case e.source == "":
			content.Source = filepath.Join(root, fmt.Sprintf("%04d", i))
			if err := os.MkdirAll(root, 0o755); err != nil {
				return fmt.Errorf("creating a directory: %w", err)
			}
			if err := os.WriteFile(content.Source, e.data, 0o644); err != nil {
				return fmt.Errorf("writing a file of the package: %w", err)
			}
		}
		if strings.HasPrefix(name, path.Join("usr", docDir, "licenses")+"/") && format == "rpm" {
			content.Type = "license"
		}
		cfg.Contents = append(cfg.Contents, content)
	}
	data, err := yaml.Marshal(cfg)
	if err != nil {
		return fmt.Errorf("encoding the configuration of nfpm: %w", err)
	}
	file := root + ".yaml"
	if err := os.WriteFile(file, data, 0o644); err != nil {
		return fmt.Errorf("writing the configuration of nfpm: %w", err)
	}
	cmd := exec.CommandContext(ctx, c.nfpm, "package", "--config", file, "--packager", format, "--target", c.out)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("creating the %s package: %w: %s", format, err, out)
	}
	return nil
}

const copyrightFile = `Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: hyperkube
Comment: The directory /usr/share/doc/hyperkube/licenses contains the licenses
 of the libraries that the program contains.

Files: *
Copyright: The hyperkube Authors
License: Apache-2.0
 On Debian systems, the text of the Apache License, version 2.0, is in
 /usr/share/common-licenses/Apache-2.0.
`
