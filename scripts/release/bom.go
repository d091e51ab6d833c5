package main

import (
	"crypto/sha1" //nolint:gosec // SPDX requires this checksum of files, in addition to SHA-256
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
)

// bom is a software bill of materials of one program or image, in SPDX 2.3.
//
// https://spdx.github.io/spdx-spec/v2.3/
type bom struct {
	config     config
	target     target
	name       string
	binary     string // path of the program
	components []component
}

// The types below have the field names of the JSON format of SPDX 2.3. Only the fields that are used exist.
type (
	spdxDocument struct {
		SPDXVersion       string             `json:"spdxVersion"`
		DataLicense       string             `json:"dataLicense"`
		SPDXID            string             `json:"SPDXID"`
		Name              string             `json:"name"`
		DocumentNamespace string             `json:"documentNamespace"`
		CreationInfo      spdxCreation       `json:"creationInfo"`
		Packages          []spdxPackage      `json:"packages"`
		Files             []spdxFile         `json:"files"`
		Relationships     []spdxRelationship `json:"relationships"`
	}
	spdxCreation struct {
		Created  string   `json:"created"`
		Creators []string `json:"creators"`
	}
	spdxPackage struct {
		SPDXID           string         `json:"SPDXID"`
		Name             string         `json:"name"`
		Version          string         `json:"versionInfo"`
		DownloadLocation string         `json:"downloadLocation"`
		FilesAnalyzed    bool           `json:"filesAnalyzed"`
		Concluded        string         `json:"licenseConcluded"`
		Declared         string         `json:"licenseDeclared"`
		Copyright        string         `json:"copyrightText"`
		ExternalRefs     []spdxExternal `json:"externalRefs,omitempty"`
		Purpose          string         `json:"primaryPackagePurpose,omitempty"`
	}
	spdxExternal struct {
		Category string `json:"referenceCategory"`
		Type     string `json:"referenceType"`
		Locator  string `json:"referenceLocator"`
	}
	spdxFile struct {
		SPDXID    string         `json:"SPDXID"`
		Name      string         `json:"fileName"`
		Types     []string       `json:"fileTypes"`
		Checksums []spdxChecksum `json:"checksums"`
		Concluded string         `json:"licenseConcluded"`
		Copyright string         `json:"copyrightText"`
	}
	spdxChecksum struct {
		Algorithm string `json:"algorithm"`
		Value     string `json:"checksumValue"`
	}
	spdxRelationship struct {
		Element string `json:"spdxElementId"`
		Type    string `json:"relationshipType"`
		Related string `json:"relatedSpdxElement"`
	}
)

const (
	noAssertion = "NOASSERTION"
	ourLicense  = "Apache-2.0"
)

func (b bom) write(file string) error {
	doc, err := b.document()
	if err != nil {
		return err
	}
	return create(file, func(w io.Writer) error {
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		return encoder.Encode(doc)
	})
}

// document returns the SPDX document. Its namespace contains the checksum of the program, so it is
// unique.
func (b bom) document() (*spdxDocument, error) {
	sum256, err := sha256File(b.binary)
	if err != nil {
		return nil, err
	}
	content, err := os.ReadFile(b.binary)
	if err != nil {
		return nil, fmt.Errorf("reading the program: %w", err)
	}
	sum1 := sha1.Sum(content) //nolint:gosec // see the import
	const root, program = "SPDXRef-Package-hyperkube", "SPDXRef-File-hyperkube"
	doc := &spdxDocument{
		SPDXVersion: "SPDX-2.3", DataLicense: "CC0-1.0", SPDXID: "SPDXRef-DOCUMENT", Name: b.name,
		DocumentNamespace: "https://spdx.org/spdxdocs/" + b.name + "-" + sum256,
		CreationInfo:      spdxCreation{Created: b.config.time.Format(time.RFC3339), Creators: []string{"Organization: The hyperkube Authors", "Tool: hyperkube-release"}},
		Packages: []spdxPackage{{
			SPDXID: root, Name: "hyperkube", Version: b.config.version, DownloadLocation: noAssertion,
			Concluded: ourLicense, Declared: ourLicense, Copyright: "Copyright The hyperkube Authors", Purpose: "APPLICATION",
			ExternalRefs: []spdxExternal{{"PACKAGE-MANAGER", "purl", fmt.Sprintf("pkg:generic/hyperkube@%s?arch=%s", strings.ReplaceAll(b.config.version, "+", "%2B"), b.target.arch)}},
		}},
		Files: []spdxFile{{
			SPDXID: program, Name: "./bin/hyperkube", Types: []string{"BINARY"}, Concluded: noAssertion, Copyright: noAssertion,
			Checksums: []spdxChecksum{{"SHA1", hex.EncodeToString(sum1[:])}, {"SHA256", sum256}},
		}},
		Relationships: []spdxRelationship{{"SPDXRef-DOCUMENT", "DESCRIBES", root}, {root, "CONTAINS", program}},
	}
	for _, c := range b.components {
		id := "SPDXRef-Package-" + invalidID.ReplaceAllString(c.name+"-"+c.version, "-")
		declared, err := c.license()
		if err != nil {
			return nil, err
		}
		doc.Packages = append(doc.Packages, spdxPackage{
			SPDXID: id, Name: c.name, Version: c.version, DownloadLocation: noAssertion, Concluded: noAssertion, Declared: declared,
			Copyright: noAssertion, Purpose: "LIBRARY", ExternalRefs: []spdxExternal{{"PACKAGE-MANAGER", "purl", c.purl}},
		})
		relationship := "DEPENDS_ON"
		if c.static {
			relationship = "STATIC_LINK"
		}
		doc.Relationships = append(doc.Relationships, spdxRelationship{root, relationship, id})
	}
	return doc, nil
}

// invalidID matches characters that identifiers must not contain.
var invalidID = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

// debianLicenses are the licenses of C libraries, by the name of their Debian packages, whose copyright files
// also describe other files.
var debianLicenses = []struct{ prefix, license string }{
	{"libseccomp-dev", "LGPL-2.1-only"},
	{"libc6-dev", "LGPL-2.1-or-later"},
	{"libgcc-", "GPL-3.0-or-later WITH GCC-exception-3.1"},
}

// license returns the SPDX expression of all licenses of a component, such as "BSD-3-Clause AND
// MIT". It is NOASSERTION if one of them is unknown.
func (c component) license() (string, error) {
	if strings.HasPrefix(c.purl, "pkg:deb/") {
		for _, known := range debianLicenses {
			if c.static && strings.HasPrefix(c.name, known.prefix) {
				return known.license, nil
			}
		}
		return noAssertion, nil
	}
	var ids []string
	for _, text := range c.licenses {
		base := strings.ToLower(path.Base(text.name))
		if strings.HasPrefix(base, "notice") || strings.HasPrefix(base, "patents") {
			continue
		}
		data, err := os.ReadFile(text.file)
		if err != nil {
			return "", fmt.Errorf("reading a license of %s: %w", c.name, err)
		}
		found := identify(string(data))
		if len(found) == 0 {
			return noAssertion, nil
		}
		ids = append(ids, found...)
	}
	if len(ids) == 0 {
		return noAssertion, nil
	}
	slices.Sort(ids)
	return strings.Join(slices.Compact(ids), " AND "), nil
}

var blank = regexp.MustCompile(`[\s*#/]+`)

// identify returns the SPDX identifiers of the known licenses that a license file contains. It
// returns nil if it recognizes none.
func identify(text string) []string {
	text = strings.ToLower(blank.ReplaceAllString(text, " "))
	var ids []string
	for _, known := range []struct{ id, phrase string }{
		{"Apache-2.0", "apache license version 2.0"},
		{"Apache-2.0", "licensed under the apache license, version 2.0"},
		{"MPL-2.0", "mozilla public license version 2.0"},
		{"MPL-2.0", "mozilla public license, version 2.0"},
		{"MIT", "permission is hereby granted, free of charge, to any person obtaining a copy"},
		{"ISC", "permission to use, copy, modify, and distribute this software for any purpose with or without fee"},
		{"ISC", "permission to use, copy, modify, and or distribute this software for any purpose with or without fee"},
		{"CC0-1.0", "cc0 1.0 universal"},
	} {
		if strings.Contains(text, known.phrase) && !slices.Contains(ids, known.id) {
			ids = append(ids, known.id)
		}
	}
	if strings.Contains(text, "redistribution and use in source and binary forms") {
		if strings.Contains(text, "neither the name") || strings.Contains(text, "names of its contributors may not be used") || strings.Contains(text, "the name of the author may not be used") {
			ids = append(ids, "BSD-3-Clause")
		} else {
			ids = append(ids, "BSD-2-Clause")
		}
	}
	return ids
}
