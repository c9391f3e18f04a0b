/* xml_check.h — is a text well-formed? Elements, attributes and entities as XML has them; no comments,
 * no sections, one document type at the start. */
#ifndef XML_CHECK_H
#define XML_CHECK_H

/* Fails the test, with the place, if not. */
void xml_check(const char *text);

#endif
