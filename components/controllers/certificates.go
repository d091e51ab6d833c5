package controllers

import (
	"crypto"
	"crypto/x509"
	"fmt"

	certificatesv1 "k8s.io/api/certificates/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	"hyperkube/components/controllers/clustertrustbundle"
	"hyperkube/components/controllers/csrapproving"
	"hyperkube/components/controllers/csrcleaner"
	"hyperkube/components/controllers/csrsigning"
	"hyperkube/components/controllers/devicetainteviction"
	"hyperkube/components/controllers/podcertificatecleaner"
	"hyperkube/components/controllers/resourceclaim"
	"hyperkube/components/controllers/storageversionmigrator"
	"hyperkube/internal/api/certificates"
)

// certificateDescriptors returns the descriptions of the controllers for certificates, dynamic resource allocation and
// storage version migration, with which New creates them. It is a part of descriptors.
func certificateDescriptors() []descriptor {
	requests := []schema.GroupVersionResource{certificatesv1.SchemeGroupVersion.WithResource("certificatesigningrequests")}
	return []descriptor{
		{name: "certificatesigningrequest-signing-controller", alias: "csrsigning", user: "certificate-controller", source: "certificate-controller", workers: 5,
			needs: requests, make: makeSigner},
		{name: "certificatesigningrequest-approving-controller", alias: "csrapproving", user: "certificate-controller", source: "certificate-controller", workers: 5,
			needs: requests, make: func(d *deps) (runner, error) { return csrapproving.New(d.env) }},
		{name: "certificatesigningrequest-cleaner-controller", alias: "csrcleaner", user: "certificate-controller", source: "certificate-controller", workers: 1,
			needs: requests, make: func(d *deps) (runner, error) { return csrcleaner.New(d.env) }},
		{name: "podcertificaterequest-cleaner-controller", user: "podcertificaterequestcleaner", source: "podcertificaterequestcleaner", workers: 1,
			needs: []schema.GroupVersionResource{certificatesv1.SchemeGroupVersion.WithResource("podcertificaterequests")},
			make:  func(d *deps) (runner, error) { return podcertificatecleaner.New(d.env) }},
		{name: "kube-apiserver-serving-clustertrustbundle-publisher-controller", user: "kube-apiserver-serving-clustertrustbundle-publisher", source: "kube-apiserver-serving-clustertrustbundle-publisher", workers: 1,
			needs: []schema.GroupVersionResource{certificatesv1.SchemeGroupVersion.WithResource("clustertrustbundles")},
			make: func(d *deps) (runner, error) {
				if len(d.RootCA) == 0 {
					return nil, nil
				}
				return clustertrustbundle.New(d.env, d.RootCA)
			}},
		{name: "storage-version-migrator-controller", user: "storage-version-migrator-controller", source: "storage-version-migrator-controller", workers: 1,
			needs: []schema.GroupVersionResource{storagemigrationv1.SchemeGroupVersion.WithResource("storageversionmigrations")},
			make:  makeMigrator},
		{name: "resourceclaim-controller", alias: "resource-claim-controller", user: "resource-claim-controller", source: "resource_claim", workers: 10,
			needs: []schema.GroupVersionResource{resourcev1.SchemeGroupVersion.WithResource("resourceclaims"), resourcev1.SchemeGroupVersion.WithResource("resourceclaimtemplates")},
			make:  func(d *deps) (runner, error) { return resourceclaim.New(d.env) }},
		{name: "device-taint-eviction-controller", user: "device-taint-eviction-controller", source: "device-taint-eviction-controller", workers: 8,
			needs: []schema.GroupVersionResource{resourcev1.SchemeGroupVersion.WithResource("resourceclaims"), resourcev1.SchemeGroupVersion.WithResource("devicetaintrules")},
			make:  func(d *deps) (runner, error) { return devicetainteviction.New(d.env) }},
	}
}

// makeMigrator creates the storage version migrator with a client for CustomResourceDefinitions.
func makeMigrator(d *deps) (runner, error) {
	definitions, err := apiextensionsclient.NewForConfig(d.clients.REST)
	if err != nil {
		return nil, fmt.Errorf("creating client for custom resource definitions: %w", err)
	}
	return storageversionmigrator.New(d.env, storageversionmigrator.Config{
		Discovery: d.clients.Kube.Discovery(), Metadata: d.clients.Metadata, Definitions: definitions,
	})
}

// makeSigner creates the CSR signing controller, or returns nil if no authorities are configured.
func makeSigner(d *deps) (runner, error) {
	if len(d.Signing.Authorities) == 0 {
		return nil, nil
	}
	return csrsigning.New(d.env, d.Signing)
}

// SignWith returns a configuration of the CSR signing controller with which one certificate authority signs the
// requests for all signers. If key is nil, because the CA's key is kept outside the cluster, no request is signed.
func SignWith(cert *x509.Certificate, key crypto.Signer) csrsigning.Config {
	if key == nil {
		return csrsigning.Config{}
	}
	all := map[string]csrsigning.Authority{}
	for _, name := range csrsigning.Signers() {
		all[name] = csrsigning.Authority{Cert: cert, Key: key}
	}
	return csrsigning.Config{Authorities: all}
}

// signingFlags are the --cluster-signing-… flags for one signer. flag is their common prefix. If signer is empty, the
// flags apply to all signers.
type signingFlags struct{ flag, signer, certFile, keyFile string }

// newSigningFlags returns the signing flags for all signers and for each signer, without values.
func newSigningFlags() []*signingFlags {
	return []*signingFlags{
		{flag: "cluster-signing"},
		{flag: "cluster-signing-kubelet-serving", signer: certificatesv1.KubeletServingSignerName},
		{flag: "cluster-signing-kubelet-client", signer: certificatesv1.KubeAPIServerClientKubeletSignerName},
		{flag: "cluster-signing-kube-apiserver-client", signer: certificatesv1.KubeAPIServerClientSignerName},
		{flag: "cluster-signing-legacy-unknown", signer: certificates.LegacyUnknownSigner},
	}
}

// readSigning reads the CA certificates and keys that the flags specify and returns them by signer. It returns an error
// if a certificate has no key, or if flags for all signers and for single signers are combined.
func readSigning(flags []*signingFlags) (map[string]csrsigning.Authority, error) {
	all := map[string]csrsigning.Authority{}
	common, particular := "", ""
	for _, f := range flags {
		if f.certFile == "" && f.keyFile == "" {
			continue
		}
		if f.certFile == "" || f.keyFile == "" {
			return nil, fmt.Errorf("--%s-cert-file and --%s-key-file must be specified together", f.flag, f.flag)
		}
		a, err := readAuthority(f.certFile, f.keyFile)
		if err != nil {
			return nil, fmt.Errorf("--%s-cert-file: %w", f.flag, err)
		}
		if f.signer != "" {
			particular = f.flag
			all[f.signer] = a
			continue
		}
		common = f.flag
		for _, name := range csrsigning.Signers() {
			all[name] = a
		}
	}
	if common != "" && particular != "" {
		return nil, fmt.Errorf("--%s-… cannot be used together with --%s-…", common, particular)
	}
	return all, nil
}

// readAuthority reads the certificate and private key of a certificate authority.
func readAuthority(certFile, keyFile string) (csrsigning.Authority, error) {
	certs, err := certutil.CertsFromFile(certFile)
	if err != nil {
		return csrsigning.Authority{}, fmt.Errorf("reading signing certificate: %w", err)
	}
	key, err := keyutil.PrivateKeyFromFile(keyFile)
	if err != nil {
		return csrsigning.Authority{}, fmt.Errorf("reading signing key: %w", err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return csrsigning.Authority{}, fmt.Errorf("%s: a key of type %T cannot sign", keyFile, key)
	}
	return csrsigning.Authority{Cert: certs[0], Key: signer}, nil
}
