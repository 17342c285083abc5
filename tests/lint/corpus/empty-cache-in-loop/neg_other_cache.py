# another object's cache
def crawl(client, pages):
    for page in pages:
        client.fetch(page)
        client.empty_cache()
